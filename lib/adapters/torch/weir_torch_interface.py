# SPDX-License-Identifier: MIT
"""weir_torch_interface.py: reads the virtual methods of PyTorch's allocator classes from PyTorch's headers.

    python weir_torch_interface.py        # writes interface.txt beside this file, for the PyTorch of this interpreter

interface.txt lists the methods of the newest PyTorch that weir was tested with.  weir_torch_build.py calls changes(), and
makes a shim for a newer PyTorch only if none of these methods has changed.  The comparison ignores comments, white space,
and the names and defaults of parameters.
"""

import hashlib
import os
import re

TABLE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "interface.txt")
CLASSES = {
    "Allocator": "c10/core/Allocator.h",
    "DeviceAllocator": "c10/core/CachingDeviceAllocator.h",
    "CUDAAllocator": "c10/cuda/CUDACachingAllocator.h",
}
TYPE_WORDS = {"const", "volatile", "unsigned", "signed", "struct", "class", "enum", "typename", "long", "short"}


def tokens_of(text):
    text = re.sub(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\])*")', lambda m: m[1] or " ", text, flags=re.S)
    return re.findall(r'"(?:\\.|[^"\\])*"|\w+|::|[^\s\w]', text)


def end_of(tokens, at):
    """Returns the index after the bracket that closes the bracket at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i] in "({") - (tokens[i] in ")}")
        if depth == 0:
            return i + 1
    raise ValueError("a bracket is not closed")


def members_of(tokens, name):
    """Yields each declaration in the class `name`, as a list of tokens."""
    named = [i for i, token in enumerate(tokens) if token in ("class", "struct") and name in tokens[i + 1:i + 3]]
    starts = (next((j for j in range(i, len(tokens)) if tokens[j] in ("{", ";")), i) for i in named)
    start = next((i for i in starts if tokens[i] == "{"), None)
    if start is None:
        raise ValueError(f"there is no class {name}")
    end, at, member = end_of(tokens, start) - 1, start + 1, []
    while at < end:
        if tokens[at] in "({":
            closed = end_of(tokens, at)
            member += tokens[at:closed]
            is_body = tokens[at] == "{"
            at = closed
            if not is_body or (at < end and tokens[at] == ";"):
                continue
        else:
            member.append(tokens[at])
            at += 1
            if member[-1] != ";" and member[-2:] not in (["public", ":"], ["protected", ":"], ["private", ":"]):
                continue
        yield member
        member = []


def type_of(parameter):
    """Returns the type of a parameter, without the parameter's name and default."""
    if "=" in parameter:
        parameter = parameter[:parameter.index("=")]
    named = (len(parameter) > 1 and re.fullmatch(r"[A-Za-z_]\w*", parameter[-1]) and parameter[-2] != "::"
             and parameter[-2] not in TYPE_WORDS)
    return " ".join(parameter[:-1] if named else parameter)


def parameters_of(tokens):
    found, depth = [[]], 0
    for token in tokens:
        depth += (token in "<({") - (token in ">)}")
        if token == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return ", ".join(type_of(parameter) for parameter in found)


def methods_of(include):
    """Returns the virtual methods: {"CUDAAllocator::name(types) const": (result type, "= 0" or a hash of the body)}."""
    methods = {}
    for name, header in CLASSES.items():
        with open(os.path.join(include, header), encoding="utf-8") as file:
            tokens = tokens_of(file.read())
        for member in members_of(tokens, name):
            if "(" not in member or "~" in member or not {"virtual", "override"} & set(member):
                continue
            opens = member.index("(")
            closes = end_of(member, opens)
            body = next((i for i in range(closes, len(member)) if member[i] in ("{", "=", ";")), len(member))
            key = f"{name}::{member[opens - 1]}({parameters_of(member[opens + 1:closes - 1])})"
            key += " const" * ("const" in member[closes:body])
            returns = " ".join(word for word in member[:opens - 1] if word != "virtual")
            text = " ".join(member[body:]).rstrip("; ")
            if text not in ("", "= 0"):
                text = hashlib.sha256(text.encode()).hexdigest()[:16]
            methods[key] = (returns, text)
    return methods


def read_table():
    """Returns the version, such as (2, 15), and the methods of interface.txt.  Raises ValueError if the table is unreadable."""
    try:
        with open(TABLE, encoding="utf-8") as file:
            first, *lines = file.read().splitlines()
        rows = (line.split(" | ") for line in lines)
        return tuple(map(int, first.split()[1].split("."))), {key: (returns, text) for key, returns, text in rows}
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"cannot read the table of PyTorch's methods {TABLE}: {error}") from None


def changes(include):
    """Returns the reason why these headers need a newer version of the shim, or None if weir's shim fits the headers."""
    try:
        known, now = read_table()[1], methods_of(include)
    except (OSError, ValueError) as error:
        return str(error)
    for key, (returns, text) in known.items():
        name = key.partition("(")[0]
        if key not in now:
            others = [other for other in now if other.startswith(name + "(") and other not in known]
            return f"{name} has other parameters: {others[0]}" if others else f"{key} is gone"
        if returns != now[key][0]:
            return f"{key} returns {now[key][0]}"
        if text != now[key][1]:
            return f"the default implementation of {key} has changed"
    # A new method with a default implementation is harmless, because PyTorch's other allocators use the default, too.  If a
    # new method has no default implementation, the shim does not compile.
    new = [key for key in now if key not in known and now[key][1] == "= 0"]
    return f"{new[0]} is new, and has no default implementation" if new else None


def main():
    import torch
    include = os.path.join(os.path.dirname(torch.__file__), "include")
    version = ".".join(torch.version.__version__.split(".")[:2])
    with open(TABLE, "w", encoding="utf-8") as file:
        print("PyTorch", version, file=file)
        for key, row in methods_of(include).items():
            print(key, *row, sep=" | ", file=file)


if __name__ == "__main__":
    main()
