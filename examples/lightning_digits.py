"""Handwritten digits with Lightning, published: `esper-tui digits` shows it live.

python examples/lightning_digits.py --run-name digits --max-epochs 20
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from esper_overwatch.protocol.integrations.lightning import LightningCallback  # publish


class Classifier(LightningModule):
    """Two layers for images of 8 x 8 pixels."""

    def __init__(self, hidden: int = 64, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], _number: int) -> None:
        images, labels = batch
        self.log("validation/accuracy", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def main() -> None:
    parser = argparse.ArgumentParser(description="Handwritten digits with Lightning")
    parser.add_argument("--run-name", default=None, help="name of the published run")
    parser.add_argument("--max-epochs", type=int, default=20)
    args = parser.parse_args()
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    training, validation = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(1))
    trainer = Trainer(
        max_epochs=args.max_epochs,
        accelerator="cpu",
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        callbacks=[LightningCallback(args.run_name)],  # publish
    )
    trainer.fit(Classifier(), DataLoader(training, 64, shuffle=True), DataLoader(validation, 512))


if __name__ == "__main__":
    main()
