"""Rule circuits: a topology -> the cross-connect list of its optical switches."""

from workflow.stages import circuits
from workflow.stages.log import logged

with logged(snakemake.log[0]):
    circuits.run(
        topology_path=snakemake.input.topology,
        circuits_path=snakemake.output.circuits,
        csv_path=snakemake.output.csv,
    )
