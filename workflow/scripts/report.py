"""Rule report: verdicts, figures and tables -> one HTML file."""

from workflow.stages import report
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    report.run(
        experiment=snakemake.params.experiment,
        results=snakemake.params.results,
        settings=snakemake.params.settings,
        claims_path=snakemake.input.claims,
        figures=snakemake.params.figures,
        tables=snakemake.params.tables,
        config_path=snakemake.output.config,
        provenance_path=snakemake.output.provenance,
        report_path=snakemake.output.report,
    )
