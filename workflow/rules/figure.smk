# One job per figure: SVG for the page, light and dark, PDF for the paper, PNG to look at; the words and the data beside them.

from workflow.stages.figure import check_columns

try:
    check_columns(EXPERIMENT)
except SettingsError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


rule figure:
    input:
        unpack(files_in("figure")),
    output:
        svg=report(files_out("figure")["svg"], caption="../report/figure.rst", category="Figures"),
        **{name: path for name, path in files_out("figure").items() if name != "svg"},
    params:
        settings=settings("figure"),
        code=code("figure"),
    log:
        log_file("figure"),
    benchmark:
        benchmark_file("figure")
    message:
        words("figure")
    script:
        "../scripts/stage.py"
