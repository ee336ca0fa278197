# SPDX-License-Identifier: MIT
"""The features that torch-features.py runs, by group; each module of this folder but support is a group."""

import ast
import importlib
import pathlib

GROUPS = ("memory", "figures", "streams", "graphs", "pools", "history", "limits", "processes", "devices", "ranks",
          "exits", "compiled")


def names_of(group):
    """The names of a group's features in their order, without importing PyTorch."""
    source = pathlib.Path(__file__).with_name(group + ".py").read_text(encoding="utf-8")
    return [node.name for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef) and any("feature" in ast.unparse(d) for d in node.decorator_list)]


def load(group):
    """{name: function} of the group's features."""
    module = importlib.import_module(f"torch_features.{group}")
    return {name: getattr(module, name) for name in names_of(group)}
