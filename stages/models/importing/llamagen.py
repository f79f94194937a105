"""Conversion of the `.pt` files that LlamaGen publishes to a folder that fetch reads, without running code in them.

    python -m stages.models.importing.llamagen c2i_XXL_384.pt vq_ds16_c2i.pt llamagen-xxl --image-size 384

The folder gets config.json, generation_config.json, model.safetensors and the code of LlamaGenForImageGeneration,
and the image tokenizer in `image_tokenizer/`. Weights keep their dtype. Tensors are read and written one at a time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stages.artifacts.atomic import final_names, replacing_folder
from stages.errors import SecateurError, SourceError, reason_of
from stages.models.imaging.tokenizer import FOLDER
from stages.models.importing.llamagen_tokenizer import PublicTokenizer
from stages.models.importing.llamagen_transformer import PublicTransformer


def convert(
    transformer: Path, tokenizer: Path, folder: Path, image_size: int, heads: int | None = None, classes: int = 1000
) -> str:
    """Write `folder`, whole or not at all; what was written, in a line for each of the two networks.

    image_size: pixels on a side of the images that the transformer was trained on. heads, classes: see
    PublicTransformer.read. Raises SourceError for files that cannot be converted, and for a folder that is there.
    """
    if folder.exists():
        raise SourceError(f"{folder} is already there: name a new folder, or remove it")
    public, images = PublicTransformer.read(transformer, heads, classes), PublicTokenizer.read(tokenizer)
    if images.codes != public.codes:
        raise SourceError(
            f"{tokenizer} has {images.codes} codes, expected {public.codes}, the codes of {transformer}: the files do "
            "not belong together"
        )
    grid, rest = divmod(image_size, images.factor)
    if rest or grid < 1:
        raise SourceError(
            f"--image-size: expected a multiple of {images.factor}, the pixels of a code of {tokenizer}, "
            f"got {image_size}"
        )
    with replacing_folder(folder) as temporary:
        public.write(temporary, grid)
        images.write(temporary / FOLDER, grid)
        size = sum(path.stat().st_size for path in temporary.rglob("*.safetensors"))
    dtype = str(public.dtype).removeprefix("torch.")
    return (
        f"{transformer} ({public.place}): {public.layers} blocks of width {public.width}, {public.heads} heads, "
        f"{public.key_value_heads} for keys and values, {public.channels} channels, {public.classes} classes, {dtype}\n"
        f"{tokenizer} ({images.place}): {images.codes} codes, {grid} x {grid} for {image_size} x {image_size} pixels\n"
        f"{folder}: {size / 1e6:.1f} MB of weights"
    )


def main(arguments: list[str] | None = None) -> int:
    """Convert as the command line says; exit code 0, or 2 with the error in a line."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.models.importing.llamagen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("transformer", type=Path, metavar="GPT.pt", help="class-conditional model: c2i_XXL_384.pt")
    parser.add_argument("tokenizer", type=Path, metavar="VQ.pt", help="its image tokenizer: vq_ds16_c2i.pt")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="new folder for the converted model")
    parser.add_argument("--image-size", type=int, required=True, help="pixels on a side it was trained on: 256 or 384")
    parser.add_argument("--heads", type=int, help="query heads, where the size is none that LlamaGen publishes")
    parser.add_argument("--classes", type=int, default=1000, help='classes without "no class" (1000)')
    chosen = vars(parser.parse_args(arguments))
    try:
        print(convert(**chosen))
    except SecateurError as error:
        print(f"llamagen: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"llamagen: error: {final_names(reason_of(error))}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
