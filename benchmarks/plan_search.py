"""The whole search over plans of arXiv 2410.00273 at 16,384 devices.

    python benchmarks/plan_search.py [--devices 16384] [--repeats 3]

Processor seconds of one search for each division of products and fast domain, imports
aside; every plan that fits into memory is priced.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shared import describe, record

from railx.performance.subramanian import DIVISIONS, job_named, search


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--devices", type=int, default=16384, help="devices of the job")
    parser.add_argument("--repeats", type=int, default=3, help="searches of each job")
    options = parser.parse_args()
    print(describe())
    print(f"\n{'division':10} {'fast domain':>11} {'plans':>8} {'CPU s':>8} {'sequences/s':>12}")
    for division in DIVISIONS:
        for domain in (4, 8, 64):
            job = job_named("gpt3_1T", "b200", domain, division, options.devices)
            seconds = []
            for _ in range(options.repeats):
                begin = time.process_time()
                priced = search(job)
                row = priced.fastest
                seconds.append(time.process_time() - begin)
            speed = float(priced.sequences_per_s[row])
            print(
                f"{division:10} {domain:11} {len(priced.total_s):8,}"
                f" {median(seconds):8.3f} {speed:12.2f}"
            )
            name = f"{division} domain {domain}"
            record(f"{name}: search", median(seconds), "s", clock="processor")
            record(f"{name}: best", speed, "sequences/s", better="more", clock="none")


if __name__ == "__main__":
    main()
