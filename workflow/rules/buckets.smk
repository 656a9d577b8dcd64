# Buckets: how far lengths are rounded up for a bucketed programme.


rule buckets:
    input:
        unpack(files_in("buckets")),
    output:
        **files_out("buckets"),
    params:
        settings=settings("buckets"),
        code=code("buckets"),
    log:
        log_file("buckets"),
    benchmark:
        benchmark_file("buckets")
    message:
        words("buckets")
    script:
        "../scripts/stage.py"
