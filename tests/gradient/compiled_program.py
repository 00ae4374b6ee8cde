"""What a compiled XLA program does in its loops, read from its text."""

import re
from dataclasses import dataclass
from math import prod

_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b[a-z]+[0-9]*\[([0-9,]*)\]")
_CALLED = re.compile(r"\b(?:body|condition|calls|to_apply)=%([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")


@dataclass
class Instruction:
    """One line of a computation.

    Attributes
    ----------
    sizes : list of int
        Elements of each array of its output: one, unless it is a tuple.
    operands : list of str
    called : list of str
        Computations that it runs.
    """

    name: str
    is_root: bool
    is_tuple: bool
    sizes: list[int]
    opcode: str
    operands: list[str]
    called: list[str]


def _closing(text, start):
    """Place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"no closing parenthesis in {text!r}")


def _parse(match):
    root, name, rest = match.groups()
    is_tuple = rest.startswith("(")
    type_end = _closing(rest, 0) + 1 if is_tuple else rest.index(" ")
    call = rest.index("(", type_end)
    end = _closing(rest, call)
    attributes = rest[end:]
    branches = ",".join(_BRANCHES.findall(attributes))
    return Instruction(
        name,
        root is not None,
        is_tuple,
        [
            prod(int(axis) for axis in shape.split(",") if axis)
            for shape in _ARRAY.findall(rest[:type_end])
        ],
        rest[type_end:call].strip(),
        re.findall(r"%([\w.\-]+)", rest[call:end]),
        _CALLED.findall(attributes) + re.findall(r"%([\w.\-]+)", branches),
    )


def parse_program(text):
    """Computations by name, each a list of instructions, and the entry's name."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(_parse(match))
    return computations, entry


def _reachable(computations, names, stops_at=()):
    """Computations with these names, and all that they run, but not through some opcodes."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            for instruction in computations[name]:
                if instruction.opcode not in stops_at:
                    waiting += instruction.called
    return seen


def computations_in_loops(computations, entry):
    """What runs in a loop of the program, directly or called from there."""
    outside = _reachable(computations, [entry], stops_at=("while",))
    loops = [
        called
        for name in outside
        for instruction in computations[name]
        if instruction.opcode == "while"
        for called in instruction.called
    ]
    if not loops:
        raise ValueError("the program has no loop")
    return {name: computations[name] for name in _reachable(computations, loops)}


# These hand arrays on, or name them, without touching what they hold.
_HANDING_ON = {"parameter", "get-tuple-element", "tuple", "while", "call", "bitcast"}


def large_results_in_loops(text, least, row):
    """Instructions in loops that make an array of at least `least` elements.

    Left out are those that hand arrays on, and writes of at most `row` elements into an array
    that the computation was given (XLA does these in place; if it could not, there would be a
    copy before it). Inside fusions the same is asked of every intermediate value.
    """
    computations, entry = parse_program(text)
    found = []
    for name, instructions in computations_in_loops(computations, entry).items():
        by_name = {instruction.name: instruction for instruction in instructions}

        def writes_a_row(instruction, by_name=by_name):
            if instruction.opcode != "dynamic-update-slice":
                return False
            target, update = (by_name[operand] for operand in instruction.operands[:2])
            given = target.opcode in ("parameter", "get-tuple-element", "dynamic-update-slice")
            return given and update.sizes[0] <= row

        def is_written_by_rows(instruction):
            """Whether it is a fusion that ends in a write; what it does is looked at by itself."""
            if instruction.opcode != "fusion":
                return False
            (root,) = (one for one in computations[instruction.called[0]] if one.is_root)
            return root.opcode == "dynamic-update-slice"

        for instruction in instructions:
            if max(instruction.sizes, default=0) < least:
                continue
            if instruction.opcode in _HANDING_ON:
                continue
            if not instruction.is_tuple and (
                writes_a_row(instruction) or is_written_by_rows(instruction)
            ):
                continue
            found.append(f"{instruction.opcode} {instruction.name} in {name}")
    return sorted(found)
