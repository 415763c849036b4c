"""A U-Net that advances fields on a periodic grid of one or two dimensions by one time step."""

from collections.abc import Sequence

import torch
from torch import nn

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}
POOLS = {1: nn.AvgPool1d, 2: nn.AvgPool2d}


class UNet(nn.Module):
    """Maps a state and the parameters of the simulation to the next state (Ronneberger et al., arXiv 1505.04597).

    It learns the change of the state. The parameters are further channels, with the same value at every node.

    Args:
        dims: of the grid, 1 or 2; the number of nodes along each must be a multiple of 4.
        conditions: the range [low, high] of each parameter that the network reads. These are the first ones of
            study.json; the others make the initial state and are of no use beyond it.
        change_scale: how much a state changes in a time step, for each of its channels.
        width: channels of the finest level.
    """

    def __init__(
        self, dims: int, conditions: Sequence[Sequence[float]], change_scale: Sequence[float], width: int = 24
    ) -> None:
        super().__init__()
        self.dims = dims
        low, high = torch.tensor(conditions).T
        self.register_buffer("centre", (low + high) / 2, persistent=False)
        self.register_buffer("reach", (high - low) / 2, persistent=False)
        scale = torch.tensor(change_scale).reshape(-1, *(1,) * dims)
        self.register_buffer("change_scale", scale, persistent=False)
        num_channels = len(change_scale)
        self.fine = self._block(num_channels + len(conditions), width)
        self.middle = self._block(width, 2 * width)
        self.coarse = self._block(2 * width, 2 * width)
        self.middle_up = self._block(4 * width, width)
        self.fine_up = self._block(2 * width, width)
        self.change = CONVOLUTIONS[dims](width, num_channels, 1)
        self.pool = POOLS[dims](2)
        self.upsample = nn.Upsample(scale_factor=2)

    def _block(self, num_in: int, num_out: int) -> nn.Module:
        size = 5 if self.dims == 1 else 3
        convolution = CONVOLUTIONS[self.dims](num_in, num_out, size, padding=size // 2, padding_mode="circular")
        return nn.Sequential(convolution, nn.GELU())

    def forward(self, state: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        """The state one step later, of shape (B, channels, …) like `state`; `parameters` has the shape (B, P)."""
        known = (parameters[:, : len(self.centre)] - self.centre) / self.reach
        known = known.reshape(*known.shape, *(1,) * self.dims).expand(-1, -1, *state.shape[2:])
        fine = self.fine(torch.cat((state, known), dim=1))
        middle = self.middle(self.pool(fine))
        coarse = self.coarse(self.pool(middle))
        middle = self.middle_up(torch.cat((middle, self.upsample(coarse)), dim=1))
        fine = self.fine_up(torch.cat((fine, self.upsample(middle)), dim=1))
        return state + self.change_scale * self.change(fine)
