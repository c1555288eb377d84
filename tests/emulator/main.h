// Reads the operands, runs the grid, writes Y: emulated IN OUT. Each operand is its bytes' number, 8 bytes, and its bytes.
#pragma once

static std::vector<unsigned char> operand(FILE* file) {
    unsigned long long bytes = 0;
    if (fread(&bytes, 8, 1, file) != 1) emulated::fault("the operands are cut off");
    // Not empty: kernels get addresses.
    std::vector<unsigned char> data(bytes + 16);
    if (fread(data.data(), 1, bytes, file) != bytes) emulated::fault("an operand is cut off");
    return data;
}

template <typename... A>
void launch(int grid, int split, A... arguments) {
    for (int first = 0; first < grid; first += split) {
        emulated::Cluster cluster(split);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < split; ++rank) {
            for (unsigned thread = 0; thread < 384; ++thread) {
                threads.emplace_back([&, rank, thread] {
                    threadIdx.x = thread, blockIdx.x = first + rank, gridDim.x = grid;
                    emulated::cluster = &cluster, emulated::block = cluster.blocks[rank].get();
                    kernel(arguments...);
                });
            }
        }
        for (std::thread& thread : threads) thread.join();
    }
}
