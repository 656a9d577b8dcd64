"""What a stage is, declared once.

Its name, its settings, what it reads, what it writes and the function. The rules, the
command line, the tracked runs, the verdicts, the report and the digests of the code
take what they need from the declarations in ``workflow/stages``. This module imports no
science and no pyarrow, so that a dry run starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from railx.effort import LimitSettings
from workflow.outputs import Json, Output, Table, arrow_schema, typed_array

if TYPE_CHECKING:
    from workflow.settings import Experiment as Experiment
else:
    # Its classes import half of the project, which a dry run does not need.
    Experiment = Any

#: The composed experiment as plain data, or the part of it that is a stage's own.
Config = Mapping[str, Any]
#: Names (with their unit) and what they are; what ``railx STAGE`` prints.
Summary = dict[str, Any]


@dataclass(frozen=True)
class FromStage:
    """Files of a stage: ``"network.bounds"`` is its output ``bounds``.

    ``items``: one (a file), several (a list), or none where the stage has none.
    """

    output: str
    items: str | tuple[str, ...] = ""


@dataclass(frozen=True)
class Needs:
    """The processes of a job, for nodes of a cluster; device ``cpu`` wants no GPU."""

    ranks: int = 1
    threads_per_rank: int = 1
    device: str = "cpu"


#: What a stage reads: files by name, of other stages or the user's own.
Inputs = Mapping[str, "FromStage | Path | Sequence[Path]"]


@dataclass(frozen=True)
class Item:
    """What a stage does one job for: the wildcard of its files, and all names."""

    wildcard: str
    names: Callable[[Config], Iterable[str]]


@dataclass(frozen=True)
class History:
    """How the numbers of a result went, step by step.

    ``output`` is the table and ``step`` its column that counts. ``curve`` names the
    curve of a row by its columns, in braces. ``values`` are the columns that are drawn,
    each with how the rows of one step become one number (``max`` or ``mean``).
    ``repeat`` is the column that tells repeats apart, where the table has it, and
    ``aside`` the one that sets rows aside. ``settings``: whether each step is a setting
    of its own (a load), not once more the same (an iteration).
    """

    output: str
    step: str
    curve: str
    values: Mapping[str, str]
    repeat: str = ""
    aside: str = ""
    settings: bool = False


@dataclass(frozen=True)
class Tracked:
    """How a result becomes a tracked run.

    The output with its numbers (empty: it has none) and those that are kept with it.
    ``name`` is the run's name where the stage has no items; ``fidelity`` where the
    numbers do not say it. ``history`` are its curves, ``verdicts`` is the table with a
    verdict a row.
    """

    numbers: str
    artifacts: tuple[str, ...]
    name: str = ""
    fidelity: str | None = None
    history: tuple[History, ...] = ()
    verdicts: str = ""


@dataclass(frozen=True)
class ByHand:
    """How ``railx STAGE`` runs a stage.

    The config groups that it reads, an example, and what ``--out`` takes. ``settings``
    turns the choices into the settings of the stage (None: the group of its name) and
    ``item`` into the name of what it works on. ``before`` says which outputs of other
    stages are made first from the same choices, by the name of the input. ``writes`` is
    the output behind it by the ending of its name, or None for a folder that takes
    every output. ``primary`` is the config that holds the choices nobody made. ``run``
    and ``outputs`` stand for the stage's own where one run by hand is less than a job
    of the pipeline. ``formats`` are the words of ``--format``, which writes what
    ``export`` makes of the output behind ``--out`` for another program.
    """

    groups: tuple[str, ...]
    example: str
    out: str
    writes: Mapping[str, str] | None
    settings: Callable[[Config], Any] | None = None
    item: Callable[[Config], str] = lambda chosen: ""
    before: Mapping[str, str] = field(default_factory=dict)
    primary: str = "stage"
    run: Callable[[Job], Summary] | None = None
    outputs: Mapping[str, Output] | None = None
    formats: tuple[str, ...] = ()
    export: Callable[[Path, str], Any] | None = None


#: Refuses settings of a group under a key beyond limits: settings, key, limits.
SettingsCheck = Callable[[Any, str, LimitSettings], None]


@dataclass(frozen=True)
class Stage:
    """A stage: the word for its rule, its module, its results and its command.

    ``name`` is that word. ``message`` is what Snakemake says when it runs, with the
    item in braces. ``settings`` picks its plain part of an experiment for an item (a
    change in it, and only in it, reruns the job), ``inputs`` the files that the job
    reads, ``modules`` further modules that its code digest covers, ``needs`` the
    processes that it runs. Checks raise SettingsError before any job:
    ``check_settings`` of the settings of a group, in an experiment or chosen by hand,
    ``check`` of an experiment whose settings do not fit together for this stage,
    ``check_choices`` the same of the groups of a stage run by hand, of those that are
    there.
    ``in_folder`` is false for a stage whose files lie at the top of the results.
    """

    name: str
    help: str
    message: str
    outputs: Mapping[str, Output]
    run: Callable[[Job], Summary]
    item: Item | None = None
    settings: Callable[[Config, str], Any] = lambda settings, item: None
    inputs: Callable[[Config, str], Inputs] = lambda settings, item: {}
    modules: Callable[[Config, str], tuple[str, ...]] = lambda settings, item: ()
    needs: Callable[[Config, str], Needs] = lambda settings, item: Needs()
    check_settings: Mapping[str, SettingsCheck] = field(default_factory=dict)
    check: Callable[[Experiment], None] = lambda settings: None
    check_choices: Callable[[Mapping[str, Any]], None] = lambda settings: None
    by_hand: ByHand | None = None
    tracked: Tracked | None = None
    in_folder: bool = True

    @property
    def wildcard(self) -> str:
        """The item as Snakemake writes it in a path (``{topology}``), or empty."""
        return f"{{{self.item.wildcard}}}" if self.item else ""

    def items(self, settings: Config) -> tuple[str, ...]:
        """The items of an experiment; one empty name for a stage without items."""
        return tuple(self.item.names(settings)) if self.item else ("",)

    def pattern(self, output: str) -> str:
        """Where an output stands below results, with the wildcard; else ValueError."""
        if output not in self.outputs:
            allowed = ", ".join(self.outputs)
            raise ValueError(f"{self.name}.{output}: no such output; allowed: {allowed}")
        kind = self.outputs[output]
        path = kind.path or "/".join(filter(None, (self.wildcard, f"{output}{kind.ending}")))
        return f"{self.name}/{path}" if self.in_folder else path

    def path(self, output: str, item: str = "") -> str:
        """Where an output of an item stands below the results of an experiment."""
        return self.pattern(output).replace(self.wildcard, item) if item else self.pattern(output)

    def make(
        self,
        settings: Any = None,
        *,
        item: str = "",
        inputs: Mapping[str, str | Path | Sequence[str | Path]] | None = None,
        outputs: Mapping[str, str | Path] | None = None,
    ) -> Summary:
        """Run the stage on files; the summary is returned.

        Those of ``outputs`` are written and checked against the declared columns. The
        summary itself is written where the stage declares it as a JSON object.
        """
        read = {
            name: (Path(files),)
            if isinstance(files, (str, Path))
            else tuple(Path(file) for file in files)
            for name, files in (inputs or {}).items()
        }
        written = {name: Path(path) for name, path in (outputs or {}).items()}
        for name in written:
            self.pattern(name)
        job = Job(self, item, settings, read, written)
        summary = self.run(job)
        if isinstance(self.outputs.get("summary"), Json):
            job.write_json("summary", summary)
        for name, path in written.items():
            output = self.outputs[name]
            if isinstance(output, (Json, Table)):
                output.check(path)
        return summary


@dataclass(frozen=True)
class Job:
    """One run of a stage: its item and settings, the files it reads and is to write."""

    stage: Stage
    item: str
    settings: Any
    inputs: Mapping[str, tuple[Path, ...]]
    outputs: Mapping[str, Path]

    def file(self, name: str) -> Path:
        """The one file of an input."""
        (only,) = self.inputs[name]
        return only

    def load(self, hint: Any, group: str = "") -> Any:
        """The settings (of ``group``, where there are several) as their class."""
        from railx.settings import load

        settings = self.settings[group] if group else self.settings
        return load(hint, settings, group or self.stage.name)

    def write_table(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows where the table is wanted; ValueError: not as declared."""
        if name not in self.outputs:
            return
        import pyarrow as pa

        from railx.io import write_table

        output, path = self.stage.outputs[name], self.outputs[name]
        if not isinstance(output, Table):
            raise TypeError(f"{self.stage.name}.{name} is no table")
        schema = arrow_schema(output.declared())
        gathered = [dict(row) for row in rows]
        for row in gathered:
            if list(row) != schema.names:
                differing = sorted(set(row) ^ set(schema.names)) or ["their order"]
                got = f"{path}: columns differ from the declared ones: {', '.join(differing)}"
                raise ValueError(f"{got}; allowed: {', '.join(schema.names)}")
        columns = {}
        for column in schema:
            try:
                columns[column.name] = typed_array(
                    [row[column.name] for row in gathered], column.type
                )
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise ValueError(f"{path}: column {column.name}: {error}") from error
        write_table(path, pa.table(columns, schema=schema))

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON value where the file is wanted."""
        from railx.io import write_json

        self.write(name, write_json, value)

    def write(self, name: str, write: Callable[..., None], *values: Any, **more: Any) -> None:
        """Write a file by ``write(path, *values, **more)`` where it is wanted."""
        if name in self.outputs:
            write(self.outputs[name], *values, **more)
