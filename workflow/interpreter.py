"""The path of Python in the shell commands with which Snakemake starts jobs.

Snakemake writes it there unquoted, so that no job starts where the path has a space.
"""

from __future__ import annotations

import shlex
from typing import Any

from snakemake.script import PythonScript, ScriptBase
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

__all__ = ["quote_interpreter"]

_execute = ScriptBase._execute_cmd
_executable = RemoteExecutor.get_python_executable


def quote_interpreter() -> None:
    """Quote the path in the jobs of this process, local ones and those of a cluster."""
    PythonScript._execute_cmd = _execute_quoted
    RemoteExecutor.get_python_executable = lambda self: shlex.quote(_executable(self))


def _execute_quoted(script: Any, command: str, **values: Any) -> Any:
    return _execute(script, command.replace("{py_exec}", "{py_exec:q}"), **values)
