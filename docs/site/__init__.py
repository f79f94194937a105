"""What the documentation site is built with beside its pages: mkdocs hooks, a griffe extension, the drawings."""
