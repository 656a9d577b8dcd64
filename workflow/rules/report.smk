# One self-contained page.


def report_figures():
    """What the report shows of each figure: its kind, image and the files behind it."""
    entries = []
    for name, settings in EXPERIMENT.figures.items():
        wildcards = type("Wildcards", (), {"figure": name})()
        entries.append(
            {
                "kind": settings.figure,
                "name": name,
                "image": str(RESULTS / f"figures/{name}.svg"),
                "tables": [str(file) for files in figure_inputs(wildcards).values() for file in files],
            }
        )
    return entries


def report_tables():
    """The tables that the report prints."""
    entries = [
        ("Topologies", RESULTS / "topology/metrics.parquet"),
        ("Cost and power of networks", RESULTS / "economics/summary.parquet"),
        ("Bill of materials", RESULTS / "economics/bill.parquet"),
    ]
    entries += [(f"Uniform all-to-all on {name}", RESULTS / f"network/{name}.parquet") for name in EXPERIMENT.topologies]
    entries += [(f"Training run {name}", RESULTS / f"training/{name}/settings.parquet") for name in EXPERIMENT.runs]
    return [{"title": title, "path": str(path), "columns": []} for title, path in entries]


rule report:
    input:
        claims=RESULTS / "evidence/claims.parquet",
        figures=expand(RESULTS / "figures/{name}.svg", name=EXPERIMENT.figures),
        tables=[table["path"] for table in report_tables()],
        templates=sorted(Path("railx/report/templates").iterdir()),
    output:
        report=report(RESULTS / "report.html", caption="../report/report.rst", category="Report"),
        config=RESULTS / "config.json",
        provenance=RESULTS / "provenance.json",
    params:
        experiment=EXPERIMENT.name,
        results=str(RESULTS),
        settings=SETTINGS,
        figures=report_figures(),
        tables=report_tables(),
        code=code("report", *sorted({figure_module(settings.figure) for settings in EXPERIMENT.figures.values()})),
    log:
        RESULTS / "logs/report.log",
    benchmark:
        RESULTS / "benchmarks/report.tsv"
    message:
        f"Report {RESULTS}/report.html"
    script:
        "../scripts/report.py"
