"""BLEU and training cost of translators, as Vaswani et al. 2017 printed them: row H15."""

import dataclasses

__all__ = ["CAVEATS", "DEVICE_FLOPS", "TABLE", "PublishedTranslator", "TrainingTime"]

# Sustained single-precision FLOP/s of a device, footnote 5 of the paper.
DEVICE_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
_HOUR, _DAY = 3600, 86400

CAVEATS = (
    "BLEU of the table is that of tokenised text, with compounds split for German: not comparable "
    "with sacreBLEU",
    "FLOPs of the table are estimates: training time × number of GPUs × sustained single-precision "
    "FLOP/s of one; those of runs are counted by formulas, padding included",
)


@dataclasses.dataclass(frozen=True)
class TrainingTime:
    """The time and the devices that a model was trained on.

    Attributes:
        seconds: From the first step to the last.
        devices: How many there were.
        device: A name of :data:`DEVICE_FLOPS`.
        steps: How many steps it took.
    """

    seconds: int
    devices: int
    device: str
    steps: int

    @property
    def flops(self) -> float:
        """The estimate of the paper: time × devices × sustained FLOP/s of one.

        Example:
            >>> TrainingTime(12 * 3600, 8, "P100", 100_000).flops
            3.2832e+18
        """
        return self.seconds * self.devices * DEVICE_FLOPS[self.device]


@dataclasses.dataclass(frozen=True)
class PublishedTranslator:
    """A row of table 2: newstest2014, English to German and English to French.

    Attributes:
        name: As in the table.
        source: Where the system was published.
        bleu_de: BLEU of English to German; None where there is none.
        bleu_fr: BLEU of English to French.
        flops_de: Training cost as printed.
        flops_fr: Training cost as printed; that of a Transformer is printed once for both.
        ensemble: Whether several models translate together.
        time: Training time, where the paper tells it.
    """

    name: str
    source: str
    bleu_de: float | None
    bleu_fr: float | None
    flops_de: float | None
    flops_fr: float | None
    ensemble: bool = False
    time: TrainingTime | None = None


TABLE = (
    PublishedTranslator("ByteNet", "Kalchbrenner et al. 2016", 23.75, None, None, None),
    PublishedTranslator("Deep-Att + PosUnk", "Zhou et al. 2016", None, 39.2, None, 1.0e20),
    PublishedTranslator("GNMT + RL", "Wu et al. 2016", 24.6, 39.92, 2.3e19, 1.4e20),
    PublishedTranslator("ConvS2S", "Gehring et al. 2017", 25.16, 40.46, 9.6e18, 1.5e20),
    PublishedTranslator("MoE", "Shazeer et al. 2017", 26.03, 40.56, 2.0e19, 1.2e20),
    PublishedTranslator(
        "Deep-Att + PosUnk ensemble", "Zhou et al. 2016", None, 40.4, None, 8.0e20, True
    ),
    PublishedTranslator("GNMT + RL ensemble", "Wu et al. 2016", 26.30, 41.16, 1.8e20, 1.1e21, True),
    PublishedTranslator(
        "ConvS2S ensemble", "Gehring et al. 2017", 26.36, 41.29, 7.7e19, 1.2e21, True
    ),
    PublishedTranslator(
        "Transformer, base", "Vaswani et al. 2017", 27.3, 38.1, 3.3e18, 3.3e18,
        time=TrainingTime(12 * _HOUR, 8, "P100", 100_000),
    ),
    PublishedTranslator(
        "Transformer, big", "Vaswani et al. 2017", 28.4, 41.8, 2.3e19, 2.3e19,
        time=TrainingTime(7 * _DAY // 2, 8, "P100", 300_000),
    ),
)  # fmt: skip
