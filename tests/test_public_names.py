"""Names, parameters, defaults and options that users have, compared with `public_names.json`.

After an intended addition: ``python tests/test_public_names.py --write``.
"""

import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import click
import pytest

from pickmix.cli import main

FILE = Path(__file__).with_name("public_names.json")
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
# In a package of their own, which the test environment has.
EXPERIMENTS = ("pickmix.data.uci", "$ pickmix bench", "$ pickmix reproduce")
_ATTRIBUTES = re.compile(r"\n\s*Attributes\n\s*-+\n(.*?)(?=\n\s*\w+\n\s*-{3,}\n|\Z)", re.DOTALL)


def signature(function):
    """Parameters with defaults, without types."""
    parameters = inspect.signature(function).parameters.values()
    collected = []
    for parameter in parameters:
        bare = str(parameter.replace(annotation=inspect.Parameter.empty))
        by_name = parameter.kind is parameter.KEYWORD_ONLY
        collected.append(f"{bare}, by name only" if by_name else bare)
    return [text for text in collected if text not in ("self", "cls")]


def attributes(cls):
    """Names in the section on attributes of a docstring."""
    collected = _ATTRIBUTES.search(inspect.getdoc(cls) or "")
    text = collected.group(1).replace("\\\n", "") if collected else ""
    names = [line.split(" : ")[0] for line in text.splitlines() if not line.startswith(" ")]
    return sorted({name.strip() for line in names for name in line.split(",")} - {""})


def described(value):
    """What users can write after a public name."""
    if not inspect.isclass(value):
        return signature(value) if callable(value) else "value"
    members = {"attributes": attributes(value)}
    # Classes with attributes and no parameters are made by pickmix, not by users.
    if not members["attributes"] or "\nParameters\n" in inspect.getdoc(value):
        members["()"] = signature(value)
    for name in dir(value):
        # What scikit-learn adds depends on its version.
        owner = next(cls for cls in value.__mro__ if name in vars(cls))
        if name.startswith("_") or not owner.__module__.startswith("pickmix"):
            continue
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            members[name] = "property"
        elif callable(getattr(value, name)) and not name.endswith("_request"):
            members[name] = signature(getattr(value, name))
    return members


def modules():
    """Public names that the pages of the reference list, described, by module."""
    collected = {}
    for page in sorted(REFERENCE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for module, block in re.findall(r"currentmodule:: (\S+)\n(.*?)```", text, re.DOTALL):
            for name in re.findall(r"^   (\w+)$", block, re.MULTILINE):
                value = getattr(importlib.import_module(module), name)
                collected.setdefault(module, {})[name] = described(value)
    return collected


def options(command):
    """Arguments and options of a command, with choices and defaults."""
    collected = []
    for parameter in command.params:
        text = " ".join([*parameter.opts, *parameter.secondary_opts])
        if isinstance(parameter.type, click.Choice):
            text += f" {{{'|'.join(parameter.type.choices)}}}"
        # Versions of click say differently that there is no default.
        if (
            isinstance(parameter.default, str | int | float | Path)
            and parameter.default is not False
        ):
            text += f" = {parameter.default}"
        collected.append(text)
    return sorted(collected)


def commands(group=main, name="$ pickmix"):
    """Options of all commands, by what users type."""
    context = click.Context(group)
    collected = {name: options(group)}
    for verb in group.list_commands(context):
        command = group.get_command(context, verb)
        if isinstance(command, click.Group):
            collected |= commands(command, f"{name} {verb}")
        else:
            collected[f"{name} {verb}"] = options(command)
    return collected


def interface():
    """All that is public, the experiments apart."""
    collected = {"pickmix": modules() | commands(), "experiments": {}}
    for name in list(collected["pickmix"]):
        if name.startswith(EXPERIMENTS):
            collected["experiments"][name] = collected["pickmix"].pop(name)
    return collected


def by_path(value, path=""):
    """Nested names as one dict, such as "pickmix.MergeTree.labels"."""
    if not isinstance(value, dict):
        return {path: value}
    collected = {}
    for name, item in value.items():
        collected |= by_path(item, f"{path}.{name}".strip("."))
    return collected


@pytest.mark.parametrize("part", ["pickmix", "experiments"])
def test_users_have_what_they_had(part):
    recorded = by_path(json.loads(FILE.read_text(encoding="utf-8"))[part])
    live = by_path(interface()[part])
    assert sorted(recorded.keys() - live.keys()) == [], "names that are gone"
    for name in recorded:
        assert live[name] == recorded[name], name
    assert sorted(live.keys() - recorded.keys()) == [], f"new names: run {__doc__}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(json.dumps(interface(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
