"""Other tools' measurements of GPUs. What they say is read by ../measured/; here they are only told apart."""

from __future__ import annotations

from ..measured import tools
from .piece import Piece, Recognised, read_record


def recognise_piece(piece: Piece) -> Recognised | None:
    name = tools.find_tool(piece.text)
    if name is None:
        return None
    label = piece.name.replace("/", "_").replace(" ", "_")[-80:]
    return Recognised(
        "output of %s" % name,
        (read_record("%s/%s/%s" % (tools.DIRECTORY, name, label), piece.text),),
        extra={"measured": name},
    )
