"""ProgressiveLayerDrop by DeepSpeed's name; the curve is capstan's."""

from capstan import _C


class ProgressiveLayerDrop:
    """How often a model keeps its last layer: from 1 down to `theta`."""

    def __init__(self, theta=0.5, gamma=0.001):
        self.theta, self.gamma = theta, gamma
        self._curve = _C.LayerDrop(theta, gamma)
        self.current_theta = self._curve.at(0)

    def get_state(self):
        """Keywords for the model's forward."""
        return {"progressive_layer_drop": True, "pld_theta": self.get_theta()}

    def get_theta(self):
        return self.current_theta

    def update_state(self, global_step):
        self.current_theta = self._curve.at(global_step)
