"""An HDF5 file for each simulation, and torch's DataLoader with two workers once all are there."""

import h5py

from benchmarks.peers.work import ready, wait_for_producers


def produce(place, producer, work):
    with h5py.File(place / f"{producer}.h5", "w") as file:
        shape = (work.num_samples, work.num_values)
        field = file.create_dataset("field", shape, "f4", chunks=(1, work.num_values))
        for number in range(work.num_samples):
            field[number] = work.sample(producer, number)


class Files:
    def __init__(self, paths, num_samples):
        self.paths, self.num_samples, self.open = paths, num_samples, {}

    def __len__(self):
        return len(self.paths) * self.num_samples

    def __getitem__(self, index):
        number, row = divmod(index, self.num_samples)
        if number not in self.open:
            self.open[number] = h5py.File(self.paths[number])["field"]
        return self.open[number][row]


def batches(place, work):
    from torch.utils.data import DataLoader

    ready(place)
    wait_for_producers(place, work)
    files = Files(sorted(place.glob("*.h5")), work.num_samples)
    loader = DataLoader(files, work.batch_size, shuffle=True, num_workers=2)
    for _ in range(work.draws):
        yield from loader
