"""Trainings of Keras, seen and steered by the wire."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run

from .viewer import check_stopped, journal, needs, train_beside_viewer

pytestmark = [
    *needs("keras", "keras"),
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings(
        "ignore:__array__ implementation:DeprecationWarning"
    ),  # Keras's own, by the hundred
]
os.environ.setdefault("KERAS_BACKEND", "torch")
X = np.random.default_rng(1).normal(size=(256, 4)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


def make_model() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return model


def test_viewer_follows_saves_and_ends_a_fit() -> None:
    import keras

    from esper_overwatch.protocol.integrations.keras import KerasCallback

    model = make_model()

    def fit() -> None:
        more = {"validation_data": (X, Y), "callbacks": [KerasCallback("toy")], "verbose": 0}
        model.fit(X, Y, batch_size=64, epochs=10**6, **more)

    seen = train_beside_viewer(fit, "toy", {"loss", "accuracy", "epoch/val_loss", "epoch"})
    check_stopped("toy", seen)
    assert seen.config["optimizer"]["learning_rate"] == pytest.approx(0.01)
    assert (seen.config["epochs"], seen.config["parameters"]) == (10**6, model.count_params())
    assert seen.saved["path"].endswith("-asked.keras")
    assert keras.models.load_model(seen.saved["path"]).count_params() == model.count_params()
    rows = [event for event in journal("toy", ev.Scalars) if "loss" in event.values]
    assert [event.step for event in rows] == list(range(len(rows)))


def test_second_fit_goes_on_in_the_same_run() -> None:
    from esper_overwatch.protocol.integrations.keras import KerasCallback

    model = make_model()
    with publish("own", config={"who": "me"}) as run:
        callback = KerasCallback(run, every=2)
        for _ in range(2):
            model.fit(X, Y, batch_size=64, epochs=1, callbacks=[callback], verbose=0)
        assert run.config["who"] == "me"
        assert run.config["model"] == model.name
    assert find_run("own").state == "COMPLETED"
    rows = journal("own", ev.Scalars)
    assert [event.step for event in rows if "loss" in event.values] == [0, 2, 4, 6]
    assert [(e.step, e.values["epoch"]) for e in rows if "epoch" in e.values] == [(3, 1.0), (7, 1.0)]
