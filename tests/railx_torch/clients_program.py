"""A rank that trains through one of torch's clients and writes its losses.

Not a test module: ``test_clients.py`` starts it under torchrun. Usage:
clients_program.py CLIENT BACKEND FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 6
#: The step of the first attempt in which a rank is killed, and the rank.
KILLED = 3, 1


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 8, generator=generator, dtype=torch.float64)


def restarted(folder: Path) -> list[float]:
    """FSDP2 that saves each step by DCP, and goes on where a killed rank ended it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    rank, network = dist.get_rank(), model()
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses: list[float] = []
    saved = sorted((folder / "saved").glob("*.json"))
    if saved:
        losses = json.loads(saved[-1].read_text())
        weights, moments = get_state_dict(network, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / "saved" / saved[-1].stem)
        set_state_dict(
            network, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    for step in range(len(losses), STEPS):
        optimizer.zero_grad()
        loss = network(batch(step, rank)).square().mean()
        loss.backward()
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and "KILL" in os.environ and (step, rank) == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total))
        weights, moments = get_state_dict(network, optimizer)
        dcp.save(
            {"model": weights, "optimizer": moments},
            checkpoint_id=folder / "saved" / f"step_{step}",
        )
        if rank == 0:
            (folder / "saved" / f"step_{step}.json").write_text(json.dumps(losses))
    return losses


def fabric(folder: Path) -> list[float]:
    """Lightning Fabric's DDP strategy."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    runner = Fabric(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=os.environ["BACKEND"]),
    )
    runner.launch()
    network = model()
    network, optimizer = runner.setup(network, torch.optim.AdamW(network.parameters(), lr=1e-2))
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = network(batch(step, runner.global_rank)).square().mean()
        runner.backward(loss)
        optimizer.step()
        losses.append(float(runner.all_reduce(loss.detach(), reduce_op="sum")))
    return losses


def accelerate(folder: Path) -> list[float]:
    """Accelerate takes the process group that is there; it knows no other backend."""
    from accelerate import Accelerator

    runner = Accelerator(cpu=True)
    network = model()
    network, optimizer = runner.prepare(network, torch.optim.AdamW(network.parameters(), lr=1e-2))
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = network(batch(step, runner.process_index)).square().mean()
        runner.backward(loss)
        optimizer.step()
        losses.append(float(runner.reduce(loss.detach(), "sum")))
    return losses


def trainer(folder: Path) -> list[float]:
    """Hugging Face's Trainer on a small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Tokens(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4 * STEPS * dist.get_world_size()

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.randint(64, (16,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": ids, "labels": ids}

    torch.manual_seed(1)
    network = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False)
    )
    options = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    runner = Trainer(model=network, args=options, train_dataset=Tokens())
    runner.train()
    return [row["loss"] for row in runner.state.log_history if "loss" in row]


def main(client: str, backend: str, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["BACKEND"] = backend
    if client != "fabric":
        dist.init_process_group(backend)
    losses = {"restarted": restarted, "fabric": fabric, "accelerate": accelerate,
              "trainer": trainer}[client](folder)  # fmt: skip
    used = dist.get_backend()
    if dist.get_rank() == 0:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        said = {"losses": losses, "backend": used, "restarts": int(restarts)}
        (folder / f"{client}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
