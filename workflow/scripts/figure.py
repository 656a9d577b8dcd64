"""Rule figure: tables -> one figure as SVG and PNG."""

from workflow.stages import figure
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    figure.run(
        snakemake.params.settings,
        inputs={
            key: [files] if isinstance(files, str) else list(files)
            for key, files in snakemake.input.items()
        },
        svg_path=snakemake.output.svg,
    )
