// What the cost device needs to know of a CUDA machine, measured: bandwidth, matrix rate, memory, the start of a kernel
// and of a recorded step. One line of JSON per figure: its unit, the median, the least and the largest of its runs.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -o device-probe crates/kvasir-sim/probe/device.cu -lcublas && ./device-probe
//
// Nothing is measured on zeros, which some machines multiply faster, nor on what fits into a cache.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        const auto status = (call);                                                                        \
        if (status != decltype(status)(0)) {                                                               \
            std::fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, static_cast<int>(status)); \
            std::exit(1);                                                                                  \
        }                                                                                                  \
    } while (0)

namespace {

constexpr size_t GIB = size_t(1) << 30;

void report(const std::string &what, const char *unit, std::vector<double> runs) {
    std::sort(runs.begin(), runs.end());
    std::printf("{\"figure\":\"%s\",\"unit\":\"%s\",\"median\":%.6g,\"least\":%.6g,\"most\":%.6g,\"runs\":%zu}\n", what.c_str(),
                unit, runs[runs.size() / 2], runs.front(), runs.back(), runs.size());
    std::fflush(stdout);
}

double host_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds on the device of what `work` enqueues, each run by itself, two before them not counted.
template <typename Work> std::vector<double> device_seconds(cudaStream_t stream, int runs, Work work) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<double> seconds;
    for (int run = -2; run < runs; ++run) {
        CHECK(cudaEventRecord(begin, stream));
        work();
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (run >= 0) seconds.push_back(ms * 1e-3);
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return seconds;
}

std::vector<double> per_second(double amount, std::vector<double> seconds) {
    for (double &s : seconds) s = amount / s;
    return seconds;
}

__device__ uint32_t hash(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ull;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dull;
    return static_cast<uint32_t>(x ^ (x >> 33));
}

/// Numbers of about one, of either sign.
__global__ void fill(__nv_bfloat16 *out, size_t count, uint64_t seed) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += step)
        out[i] = __float2bfloat16(static_cast<int32_t>(hash(seed + i)) * (1.0f / 2147483648.0f));
}

/// Reads everything, as a decode step does with its weights: eight loads of 16 bytes in flight for each thread.
__global__ void read_all(const uint4 *in, size_t count, uint32_t *out) {
    constexpr int LOADS = 8;
    const size_t threads = size_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i + (LOADS - 1) * threads < count; i += LOADS * threads) {
        uint4 got[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k) got[k] = __ldcs(in + i + k * threads);
#pragma unroll
        for (int k = 0; k < LOADS; ++k) sum += got[k].x ^ got[k].y ^ got[k].z ^ got[k].w;
    }
    if (sum == 0x9e3779b9u) *out = sum; // so that nothing is left out
}

/// A kernel that does almost nothing, after the one before it.
__global__ void touch(uint32_t *at) {
    if (threadIdx.x == 0) *at += 1;
}

void memory_and_bandwidth(cudaStream_t stream, uint32_t *sink) {
    size_t free_bytes, all_bytes;
    CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
    report("memory of the device", "B", {double(all_bytes)});
    report("memory free with a context", "B", {double(free_bytes)});

    const size_t bytes = 8 * GIB;
    __nv_bfloat16 *from, *to;
    CHECK(cudaMalloc(&from, bytes));
    CHECK(cudaMalloc(&to, bytes));
    fill<<<4096, 256, 0, stream>>>(from, bytes / 2, 1);
    CHECK(cudaGetLastError());
    int multiprocessors;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    for (const int blocks : {2, 4, 8}) {
        const auto seconds = device_seconds(stream, 21, [&] {
            read_all<<<multiprocessors * blocks, 256, 0, stream>>>(reinterpret_cast<uint4 *>(from), bytes / 16, sink);
        });
        CHECK(cudaGetLastError());
        report("read, " + std::to_string(blocks) + " blocks a multiprocessor", "B/s", per_second(bytes, seconds));
    }
    const auto copied = device_seconds(stream, 21, [&] { CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)); });
    report("copy on the device, read and written counted", "B/s", per_second(2.0 * bytes, copied));

    void *host;
    CHECK(cudaMallocHost(&host, GIB));
    const auto down = device_seconds(stream, 9, [&] { CHECK(cudaMemcpyAsync(host, from, GIB, cudaMemcpyDeviceToHost, stream)); });
    report("copy to pinned host memory", "B/s", per_second(GIB, down));
    const auto up = device_seconds(stream, 9, [&] { CHECK(cudaMemcpyAsync(to, host, GIB, cudaMemcpyHostToDevice, stream)); });
    report("copy from pinned host memory", "B/s", per_second(GIB, up));
    std::vector<double> runs;
    for (int run = 0; run < 1001; ++run) {
        const double begin = host_seconds();
        CHECK(cudaMemcpyAsync(host, from, 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        runs.push_back(host_seconds() - begin);
    }
    report("one token to the host, waited for", "s", runs);
    CHECK(cudaFreeHost(host));
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
}

/// `tokens` rows times a matrix of `outputs` by `inputs`, bf16 with sums of f32.
void matrices(cudaStream_t stream) {
    cublasHandle_t blas;
    CHECK(cublasCreate(&blas));
    CHECK(cublasSetStream(blas, stream));
    void *room;
    CHECK(cudaMalloc(&room, 64 << 20));
    CHECK(cublasSetWorkspace(blas, room, 64 << 20));
    struct Product {
        const char *name;
        int tokens, outputs, inputs;
    };
    std::vector<Product> products = {{"square", 8192, 8192, 8192}};
    // Gate and up of a layer of Qwen3-14B as one matrix: larger than any cache.
    for (const int tokens : {1, 16, 64, 256, 512, 2048, 8192}) products.push_back({"gate and up of 14B", tokens, 34816, 5120});
    for (const auto &[name, tokens, outputs, inputs] : products) {
        __nv_bfloat16 *x, *w, *y;
        const size_t rows = size_t(tokens) * inputs, weights = size_t(outputs) * inputs;
        CHECK(cudaMalloc(&x, rows * 2));
        CHECK(cudaMalloc(&w, weights * 2));
        CHECK(cudaMalloc(&y, size_t(tokens) * outputs * 2));
        fill<<<4096, 256, 0, stream>>>(x, rows, 2);
        fill<<<4096, 256, 0, stream>>>(w, weights, 3);
        CHECK(cudaGetLastError());
        const float one = 1, zero = 0;
        const auto multiply = [&] {
            CHECK(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, outputs, tokens, inputs, &one, w, CUDA_R_16BF, inputs, x, CUDA_R_16BF,
                               inputs, &zero, y, CUDA_R_16BF, outputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        };
        const std::string what = std::string("bf16 product, ") + name + ", " + std::to_string(tokens) + " tokens";
        const auto seconds = device_seconds(stream, 41, multiply);
        report(what, "op/s", per_second(2.0 * double(rows) * outputs, seconds));
        if (tokens <= 256) report(what + ", its bytes", "B/s", per_second(2.0 * (double(weights) + rows + double(tokens) * outputs), seconds));
        if (tokens == 8192) { // as long as a busy server's: clocks fall as the chip warms
            const double begin = host_seconds();
            std::vector<double> all;
            while (host_seconds() - begin < 4) {
                const auto more = device_seconds(stream, 20, multiply);
                all.insert(all.end(), more.begin(), more.end());
            }
            all.erase(all.begin(), all.begin() + all.size() / 2);
            report(what + ", sustained", "op/s", per_second(2.0 * double(rows) * outputs, all));
        }
        CHECK(cudaFree(x));
        CHECK(cudaFree(w));
        CHECK(cudaFree(y));
    }
    CHECK(cublasDestroy(blas));
    CHECK(cudaFree(room));
}

/// The same chain of small kernels, started one by one and recorded.
void starts(cudaStream_t stream, uint32_t *at) {
    for (const int kernels : {1, 10, 100, 400, 800}) {
        const std::string many = ", " + std::to_string(kernels) + " kernels";
        const auto chain = [&] {
            for (int k = 0; k < kernels; ++k) touch<<<1, 32, 0, stream>>>(at);
            CHECK(cudaGetLastError());
        };
        cudaGraph_t graph;
        cudaGraphExec_t recorded;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        chain();
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&recorded, graph, 0));
        CHECK(cudaGraphUpload(recorded, stream));
        CHECK(cudaStreamSynchronize(stream));
        const auto replay = [&] { CHECK(cudaGraphLaunch(recorded, stream)); };

        const auto host = [&](const std::string &what, auto work) {
            std::vector<double> handed, done;
            for (int run = -20; run < 501; ++run) {
                const double begin = host_seconds();
                work();
                const double mid = host_seconds();
                CHECK(cudaStreamSynchronize(stream));
                if (run < 0) continue;
                handed.push_back(mid - begin);
                done.push_back(host_seconds() - begin);
            }
            report(what + many + ", host's time", "s", handed);
            report(what + many + ", until they are done", "s", done);
        };
        host("one by one", chain);
        host("recorded", replay);
        report("one by one" + many + ", on the device", "s", device_seconds(stream, 201, chain));
        report("recorded" + many + ", on the device", "s", device_seconds(stream, 201, replay));

        // Steps handed over one behind the other, as an engine that is ahead of its device does: what a step costs then.
        auto ahead = device_seconds(stream, 41, [&] {
            for (int step = 0; step < 20; ++step) replay();
        });
        for (double &s : ahead) s /= 20;
        report("recorded" + many + ", a step of 20 handed over ahead", "s", ahead);
        CHECK(cudaGraphExecDestroy(recorded));
        CHECK(cudaGraphDestroy(graph));
    }
}

} // namespace

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    int driver = 0, runtime = 0;
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    std::printf("{\"device\":\"%s\",\"multiprocessors\":%d,\"cache\":%d,\"driver\":%d,\"runtime\":%d}\n", device.name,
                device.multiProcessorCount, device.l2CacheSize, driver, runtime);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    uint32_t *word;
    CHECK(cudaMalloc(&word, sizeof(uint32_t)));
    CHECK(cudaMemsetAsync(word, 0, sizeof(uint32_t), stream));
    memory_and_bandwidth(stream, word);
    starts(stream, word);
    matrices(stream);
    CHECK(cudaStreamSynchronize(stream));
    return 0;
}
