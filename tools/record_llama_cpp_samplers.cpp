// Records the candidates that llama.cpp's samplers keep of fixed logits, as the cases of
// crates/kvasir-sample/tests/data/llama_cpp_samplers.json.
//
// Build and run, with LLAMA a checkout of llama.cpp and BUILD its built libraries:
//   g++ -std=c++17 -I $LLAMA/include -I $LLAMA/ggml/include tools/record_llama_cpp_samplers.cpp \
//     -L $BUILD -lllama -lggml -lggml-base -Wl,-rpath,$BUILD -o record
//   ./record > crates/kvasir-sample/tests/data/llama_cpp_samplers.json

#include "llama.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

// Exported for llama.cpp's own tests, without a public declaration.
llama_sampler * llama_sampler_init_dry_testing(
    float multiplier, float base, int32_t allowed_length, int32_t last_n,
    const std::vector<std::vector<llama_token>> & breakers);

static const int VOCAB = 48;

struct Stage {
    std::string json;
    llama_sampler * sampler;
};

static std::string number(double value) {
    char text[64];
    snprintf(text, sizeof text, "%.9g", value);
    return text;
}

static Stage stage(const std::string & name, const std::vector<double> & arguments, llama_sampler * sampler) {
    std::string json = "[\"" + name + "\"";
    for (double argument : arguments) json += "," + number(argument);
    return { json + "]", sampler };
}

static Stage penalties(int last_n, float repeat, float frequency, float presence) {
    return stage("penalties", { (double) last_n, repeat, frequency, presence },
        llama_sampler_init_penalties(VOCAB, last_n, repeat, frequency, presence));
}
static Stage top_k(int k) { return stage("top_k", { (double) k }, llama_sampler_init_top_k(k)); }
static Stage top_p(float p, int keep) { return stage("top_p", { p, (double) keep }, llama_sampler_init_top_p(p, keep)); }
static Stage min_p(float p, int keep) { return stage("min_p", { p, (double) keep }, llama_sampler_init_min_p(p, keep)); }
static Stage typical(float p, int keep) {
    return stage("typ_p", { p, (double) keep }, llama_sampler_init_typical(p, keep));
}
static Stage sigma(float n) { return stage("top_n_sigma", { n }, llama_sampler_init_top_n_sigma(n)); }
static Stage xtc(float threshold, int keep) {
    return stage("xtc", { threshold, (double) keep }, llama_sampler_init_xtc(1.0f, threshold, keep, 1));
}
static Stage temperature(float t, float range, float exponent) {
    return stage("temperature", { t, range, exponent }, llama_sampler_init_temp_ext(t, range, exponent));
}
static Stage dry(float multiplier, float base, int allowed, int last_n,
    const std::vector<std::vector<llama_token>> & breakers) {
    Stage made = stage("dry", { multiplier, base, (double) allowed, (double) last_n },
        llama_sampler_init_dry_testing(multiplier, base, allowed, last_n, breakers));
    made.json.pop_back();
    made.json += ",[";
    for (size_t i = 0; i < breakers.size(); i++) {
        made.json += i ? ",[" : "[";
        for (size_t j = 0; j < breakers[i].size(); j++) {
            made.json += (j ? "," : "") + std::to_string(breakers[i][j]);
        }
        made.json += "]";
    }
    made.json += "]]";
    return made;
}

// Distinct logits: `spread` is the range, `peak` is added to one of them.
static std::vector<float> logits(uint32_t seed, float spread, float peak) {
    std::vector<float> all;
    for (int id = 0; id < VOCAB; id++) {
        seed = seed * 1664525u + 1013904223u;
        all.push_back(spread * ((seed >> 8) / 16777216.0f - 0.5f) + (id == 7 ? peak : 0.0f));
    }
    return all;
}

static std::vector<llama_token_data> candidates(const std::vector<float> & logits) {
    std::vector<llama_token_data> all;
    for (int id = 0; id < VOCAB; id++) all.push_back({ id, logits[id], 0.0f });
    return all;
}

// Prints ids and probabilities of the remaining candidates, by ascending id.
static void print_left(const llama_token_data_array & left) {
    std::vector<double> weight(VOCAB, 0.0);
    double most = -INFINITY, sum = 0.0;
    for (size_t i = 0; i < left.size; i++) most = std::fmax(most, left.data[i].logit);
    for (size_t i = 0; i < left.size; i++) {
        weight[left.data[i].id] = std::exp(left.data[i].logit - most);
        sum += weight[left.data[i].id];
    }
    std::string ids, probabilities;
    for (int id = 0; id < VOCAB; id++) {
        if (weight[id] == 0.0) continue;
        ids += (ids.empty() ? "" : ",") + std::to_string(id);
        probabilities += (probabilities.empty() ? "" : ",") + number(weight[id] / sum);
    }
    printf("\"ids\":[%s],\"probs\":[%s]", ids.c_str(), probabilities.c_str());
}

static const char * separator = "";

static void record(const char * name, const std::vector<float> & logits, const std::vector<llama_token> & history,
    std::vector<Stage> stages) {
    auto all = candidates(logits);
    llama_token_data_array left = { all.data(), all.size(), -1, false };
    printf("%s\n{\"vector\":\"%s\",\"chain\":[", separator, name);
    for (size_t i = 0; i < stages.size(); i++) {
        printf("%s%s", i ? "," : "", stages[i].json.c_str());
        for (llama_token token : history) llama_sampler_accept(stages[i].sampler, token);
        llama_sampler_apply(stages[i].sampler, &left);
        llama_sampler_free(stages[i].sampler);
    }
    printf("],");
    print_left(left);
    printf("}");
    separator = ",";
}

static void record_mirostat(int version, float tau, float eta, const std::vector<std::pair<const char *, std::vector<float>>> & vectors) {
    llama_sampler * sampler = version == 1 ? llama_sampler_init_mirostat(VOCAB, 11, tau, eta, 100)
                                           : llama_sampler_init_mirostat_v2(11, tau, eta);
    printf("%s\n{\"version\":%d,\"tau\":%s,\"eta\":%s,\"steps\":[", separator, version, number(tau).c_str(), number(eta).c_str());
    for (int step = 0; step < 12; step++) {
        auto & vector = vectors[step % vectors.size()];
        auto all = candidates(vector.second);
        llama_token_data_array left = { all.data(), all.size(), -1, false };
        llama_sampler_apply(sampler, &left);
        printf("%s\n  {\"vector\":\"%s\",\"selected\":%d,", step ? "," : "", vector.first, left.data[left.selected].id);
        print_left(left);
        printf("}");
    }
    printf("]}");
    separator = ",";
    llama_sampler_free(sampler);
}

int main() {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    std::vector<std::pair<const char *, std::vector<float>>> vectors = {
        { "flat", logits(1, 3.0f, 0.0f) }, { "wide", logits(2, 12.0f, 0.0f) }, { "peaked", logits(3, 8.0f, 6.0f) },
    };
    // Repeats `1 2 3` and `4 5`, with 9 as a possible breaker.
    std::vector<llama_token> history = { 1, 2, 3, 40, 9, 1, 2, 3, 41, 4, 5, 6, 4, 5, 9, 8, 1, 2, 3, 42, 4, 5, 6, 1, 2, 3 };
    printf("{\"vocab\":%d,\"history\":[", VOCAB);
    for (size_t i = 0; i < history.size(); i++) printf("%s%d", i ? "," : "", history[i]);
    printf("],\n\"vectors\":{");
    for (size_t v = 0; v < vectors.size(); v++) {
        printf("%s\n\"%s\":[", v ? "," : "", vectors[v].first);
        for (int id = 0; id < VOCAB; id++) printf("%s%s", id ? "," : "", number(vectors[v].second[id]).c_str());
        printf("]");
    }
    printf("},\n\"cases\":[");
    for (auto & [name, all] : vectors) {
        auto one = [&](std::vector<Stage> stages) { record(name, all, history, stages); };
        for (float p : { 0.95f, 0.5f, 0.1f }) {
            one({ typical(p, 0) });
            one({ typical(p, 5) });
            one({ top_p(p, 0) });
            one({ top_p(p, 6) });
            one({ min_p(p, 0) });
            one({ min_p(p, 6) });
        }
        for (float n : { 0.5f, 1.0f, 2.0f }) one({ sigma(n) });
        for (float threshold : { 0.02f, 0.05f, 0.1f, 0.3f }) one({ xtc(threshold, 0) });
        one({ xtc(0.01f, 47) });
        for (float exponent : { 0.5f, 1.0f, 2.0f }) one({ temperature(1.0f, 0.5f, exponent) });
        one({ temperature(0.3f, 0.6f, 1.0f) });
        one({ temperature(5.0f, 0.0f, 1.0f) });
        one({ temperature(0.0f, 0.0f, 1.0f) });
        for (int last_n : { 0, 3, 8, 64 }) one({ penalties(last_n, 1.3f, 0.2f, 0.4f) });
        one({ penalties(64, 1.2f, 0.0f, 0.0f) });
        one({ dry(0.8f, 1.75f, 2, 64, {}) });
        one({ dry(1.5f, 1.2f, 1, 64, {}) });
        one({ dry(0.8f, 1.75f, 2, 12, {}) });
        one({ dry(0.8f, 1.75f, 0, 64, { { 9 } }) });
        one({ dry(0.8f, 1.75f, 2, 64, { { 5, 6 }, { 42 } }) });
        one({ dry(0.8f, 1.75f, 1, 64, { { 2, 3, 9 }, { 40 } }) });
        // llama.cpp's default order, and others.
        one({ penalties(64, 1.1f, 0.0f, 0.0f), dry(0.8f, 1.75f, 2, 64, { { 9 } }), sigma(2.0f), top_k(20),
            typical(0.9f, 0), top_p(0.95f, 0), min_p(0.05f, 0), xtc(0.1f, 0), temperature(0.8f, 0.0f, 1.0f) });
        one({ temperature(1.7f, 0.3f, 1.0f), top_k(12), top_p(0.8f, 3), min_p(0.1f, 2) });
        one({ min_p(0.02f, 0), xtc(0.05f, 1), temperature(3.0f, 0.0f, 1.0f), typical(0.7f, 1) });
    }
    printf("],\n\"mirostat\":[");
    separator = "";
    for (int version : { 1, 2 }) {
        record_mirostat(version, 5.0f, 0.1f, vectors);
        record_mirostat(version, 2.0f, 0.5f, vectors);
        record_mirostat(version, 1.0f, 1.0f, vectors);
    }
    printf("]}\n");
}
