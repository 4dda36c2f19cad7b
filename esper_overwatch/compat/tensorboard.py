"""In place of `torch.utils.tensorboard` (and of `tensorboardX`)."""

from esper_overwatch.protocol.integrations.summary_writer import SummaryWriter as SummaryWriter
