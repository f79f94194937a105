"""Tables of pages that repeat a result file: every row of the file stands in the page."""

import pytest

from tests.helpers.committed import ROOT

REPEATED = {"benchmarks/results/images.md": "docs/images.md"}


@pytest.mark.parametrize(("results", "page"), REPEATED.items(), ids=list(REPEATED))
def test_a_page_repeats_the_figures_of_its_result_file(results, page):
    rows = [line for line in (ROOT / results).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(rows) > 2
    assert not set(rows) - set((ROOT / page).read_text(encoding="utf-8").splitlines())
