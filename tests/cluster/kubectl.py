#!/usr/bin/env python3
"""What `workflow.kubernetes` asks of kubectl, with pods that are processes here.

Pods of a job on several nodes run in network namespaces, as on hosts of their own: what
listens on one's loopback is not there for the other. FAKE_CLUSTER is the folder with
what was asked and what became of it; its file ``hosts`` has a namespace and an address
a line.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

CLUSTER = Path(os.environ["FAKE_CLUSTER"])


def apply() -> None:
    for item in json.load(sys.stdin)["items"]:
        if item["kind"] != "Job":
            continue
        folder = CLUSTER / item["metadata"]["name"]
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(item))
        for index in range(item["spec"]["completions"]):
            start(item, folder, index)


def start(job: dict, folder: Path, index: int) -> None:  # type: ignore[type-arg]
    name, nodes = job["metadata"]["name"], job["spec"]["completions"]
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    own = {one["name"]: one["value"] for one in container["env"]}
    command = container["command"]
    if nodes > 1:
        hosts = [line.split() for line in (CLUSTER / "hosts").read_text().splitlines()]
        namespace = hosts[index][0]
        # As the service has it, seen by `ip netns exec` alone.
        known = Path("/etc/netns") / namespace / "hosts"
        known.parent.mkdir(parents=True, exist_ok=True)
        named = (
            f"{address} {name}-{number}.{pod['subdomain']}\n"
            for number, (_, address) in enumerate(hosts)
        )
        # A pod knows itself by its address, not by its loopback.
        own_line = f"{hosts[index][1]} {socket.gethostname()}\n"
        known.write_text("127.0.0.1 localhost\n" + own_line + "".join(named))
        command = ["ip", "netns", "exec", namespace, *command]
    ended = 'echo $$ > "$0.pid"; "$@"; echo $? > "$0.part"; mv "$0.part" "$0.code"'
    with (folder / f"{index}.log").open("wb") as log:
        subprocess.Popen(
            ["sh", "-c", ended, str(folder / str(index)), *command],
            cwd=container["workingDir"],
            env={**os.environ, **own, "JOB_COMPLETION_INDEX": str(index)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def get(name: str) -> None:
    folder = CLUSTER / name
    if not folder.is_dir():
        return
    pods = json.loads((folder / "job.json").read_text())["spec"]["completions"]
    codes = [int(path.read_text()) for path in folder.glob("*.code")]
    kind = "Failed" if any(codes) else "Complete" if len(codes) == pods else ""
    if kind == "Failed":
        # Kubernetes ends the other pods of a job that failed.
        end(folder)
    conditions = [{"type": kind, "status": "True"}] if kind else []
    print(json.dumps({"status": {"conditions": conditions}}))


def end(folder: Path) -> None:
    for pid in folder.glob("*.pid"):
        if not pid.with_suffix(".code").exists():
            try:
                os.killpg(int(pid.read_text()), signal.SIGTERM)
            except ProcessLookupError:
                continue


def main() -> None:
    verb, *words = sys.argv[1:]
    with (CLUSTER / "asked").open("a") as asked:
        asked.write(" ".join(sys.argv[1:]) + "\n")
    if verb == "apply":
        apply()
    elif verb == "get":
        get(words[1])
    elif verb == "delete":
        for name in words[1:]:
            if not name.startswith("-"):
                end(CLUSTER / name)
                (CLUSTER / name).rename(CLUSTER / f"deleted-{name}")


if __name__ == "__main__":
    main()
