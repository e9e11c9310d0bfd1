"""Optional recording of a forward pass: intermediates by layer and name, for tests and for training auxiliary losses.

Tensors keep their graph; detach what must not be differentiated. The names are listed in README.md.
"""


class Recording:
    def __init__(self, *names):
        """Keeps the given names, or everything that costs nothing extra when none is given."""
        self.names = frozenset(names)
        self.values = {}

    def __getitem__(self, key):
        """recording[layer, name]"""
        return self.values[key]

    def __contains__(self, key):
        return key in self.values

    def layers(self, name):
        """Layers that recorded `name`, ascending."""
        return sorted(layer for layer, recorded in self.values if recorded == name)


class LayerRecord:
    """What one layer writes into; also a no-op when there is no recording."""

    def __init__(self, recording, layer):
        self.recording, self.layer = recording, layer

    def wants(self, name):
        """True only for names asked for explicitly: guards values that are computed just for the record."""
        return self.recording is not None and name in self.recording.names

    def __call__(self, name, value):
        if self.recording is not None and (not self.recording.names or name in self.recording.names):
            self.recording.values[self.layer, name] = value
