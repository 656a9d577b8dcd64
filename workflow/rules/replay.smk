# Wall time and cluster time of every training run.


rule replay:
    input:
        unpack(files_in("replay")),
    output:
        **files_out("replay"),
    params:
        settings=settings("replay"),
        code=code("replay"),
    log:
        log_file("replay"),
    benchmark:
        benchmark_file("replay")
    message:
        words("replay")
    script:
        "../scripts/stage.py"
