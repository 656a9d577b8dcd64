# One rule writes all tracked runs: MLflow's SQLite store cannot take concurrent first writes.


def tracked(stage, name, settings, code_of, inputs, summary, artifacts, fidelity=None):
    """One stage result as the tracking stage takes it, with plain paths."""
    return {
        "stage": stage,
        "name": name,
        "settings": settings,
        "code": code(code_of),
        "inputs": [str(path) for path in inputs],
        "summary": str(summary),
        "artifacts": [str(path) for path in artifacts],
        "fidelity": fidelity,
    }


def tracked_stages():
    """Every result of the experiment that becomes a tracked run."""
    catalogue = EXPERIMENT.economics.catalogue
    bill, costs = RESULTS / "economics/bill.parquet", RESULTS / "economics/summary.parquet"
    claims = RESULTS / "evidence/claims.parquet"
    stages = [
        tracked("economics", "costs", SETTINGS["economics"], "cost", [catalogue], costs, [costs, bill], "analytic"),
        tracked("evidence", "claims", {}, "claims", result_files(), RESULTS / "evidence/verdicts.json", [claims]),
    ]
    for name, settings in SETTINGS["topologies"].items():
        built, metrics = RESULTS / f"topology/{name}.parquet", RESULTS / f"topology/{name}.json"
        stages.append(tracked("topology", name, settings, "topology", [], metrics, [metrics], "analytic"))
        simulated = {key: SETTINGS[key] for key in ("traffic", "networks", "collective")}
        bounds, summary = RESULTS / f"network/{name}.parquet", RESULTS / f"network/{name}.json"
        stages.append(tracked("network", name, simulated, "simulate", [built], summary, [bounds]))
    for name, settings in SETTINGS["sweeps"].items():
        built = RESULTS / f"topology/{settings['topology']}.parquet"
        rows, summary = RESULTS / f"packets/{name}.parquet", RESULTS / f"packets/{name}.json"
        stages.append(tracked("packets", name, {**settings, "seed": SETTINGS["seed"]}, "sweep", [built], summary, [rows]))
    agreement = {**SETTINGS["agreement"], "seed": SETTINGS["seed"]}
    compared = [RESULTS / f"topology/{name}.parquet" for name in SETTINGS["agreement"]["topologies"]]
    rows, summary = RESULTS / "flows/agreement.parquet", RESULTS / "flows/agreement.json"
    stages.append(tracked("agreement", "flow_and_packet", agreement, "agreement", compared, summary, [rows]))
    for name in SETTINGS["mapping"]["topologies"]:
        inputs = [RESULTS / f"topology/{name}.parquet", SETTINGS["mapping"]["catalogue"]]
        rows, summary = RESULTS / f"steps/{name}.parquet", RESULTS / f"steps/{name}.json"
        stages.append(tracked("mapping", name, SETTINGS["mapping"], "mapping", inputs, summary, [rows]))
    studies = [RESULTS / f"tenancy/{name}.parquet" for name in ("faults", "utilisation", "degraded")]
    grid = {**SETTINGS["tenancy"], "seed": SETTINGS["seed"]}
    stages.append(tracked("tenancy", "grid", grid, "tenancy", [], RESULTS / "tenancy/summary.json", studies))
    for name, settings in SETTINGS["corpora"].items():
        summary = RESULTS / f"corpora/{name}.json"
        own = [EXPERIMENT.corpora[name].path] if hasattr(EXPERIMENT.corpora[name], "path") else []
        own = [path for path in own if Path(path).is_file()]
        stages.append(tracked("corpus", name, {**settings, "seed": SETTINGS["seed"]}, "corpus", own, summary, [summary]))
    for name, settings in SETTINGS["plans"].items():
        plan, summary = RESULTS / f"plans/{name}.json", RESULTS / f"plans/{name}.summary.json"
        corpus = RESULTS / f"corpora/{settings['corpus']}.parquet"
        stages.append(tracked("plan", name, settings, "plan", [corpus], summary, [plan, summary]))
    for name, settings in SETTINGS["runs"].items():
        plan = RESULTS / f"plans/{settings['plan']}.json"
        result, table = RESULTS / f"training/{name}/summary.json", RESULTS / f"training/{name}/settings.parquet"
        stages.append(tracked("training", name, settings, "train", [plan], result, [result, table]))
    return stages


rule track:
    input:
        files=sorted({str(path) for stage in tracked_stages() for path in [stage["summary"], *stage["inputs"], *stage["artifacts"]]}),
    output:
        tracking=RESULTS / "tracking.json",
    params:
        settings=SETTINGS["tracking"],
        experiment=EXPERIMENT.name,
        folder=str(RESULTS.parent),
        stages=tracked_stages(),
        code=code("track"),
    log:
        RESULTS / "logs/tracking.log",
    benchmark:
        RESULTS / "benchmarks/tracking.tsv"
    message:
        "Tracked runs in MLflow and W&B"
    script:
        "../scripts/track.py"
