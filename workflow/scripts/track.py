"""Rule track: the results of all stages -> tracked runs."""

from workflow.stages import track
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    track.run(
        snakemake.params.settings,
        experiment=snakemake.params.experiment,
        folder=snakemake.params.folder,
        stages=snakemake.params.stages,
        tracking_path=snakemake.output.tracking,
    )
