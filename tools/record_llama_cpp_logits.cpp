// Writes the logits that llama.cpp computes of a prompt with its defaults, as 32-bit floats: one row of the
// vocabulary's size per position.
//
// Build and run, with LLAMA a checkout of llama.cpp and BUILD its built libraries:
//   g++ -std=c++17 -I $LLAMA/include -I $LLAMA/ggml/include tools/record_llama_cpp_logits.cpp \
//     -L $BUILD -lllama -lggml -lggml-base -Wl,-rpath,$BUILD -o record
//   ./record MODEL.gguf THREADS OUT ID,ID,...

#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int count, char ** arguments) {
    if (count != 5) {
        fprintf(stderr, "usage: %s MODEL.gguf THREADS OUT ID,ID,...\n", arguments[0]);
        return 2;
    }
    std::vector<llama_token> ids;
    for (char * at = arguments[4]; *at;) {
        ids.push_back(strtol(at, &at, 10));
        if (*at == ',') at++;
    }

    llama_backend_init();
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = parameters.n_batch = ids.size() + 64;
    parameters.n_threads = parameters.n_threads_batch = atoi(arguments[2]);
    llama_context * context = llama_init_from_model(model, parameters);
    if (!context) return 1;

    llama_batch batch = llama_batch_init(ids.size(), 0, 1);
    batch.n_tokens = ids.size();
    for (int at = 0; at < batch.n_tokens; at++) {
        batch.token[at] = ids[at];
        batch.pos[at] = at;
        batch.n_seq_id[at] = 1;
        batch.seq_id[at][0] = 0;
        batch.logits[at] = true;
    }
    if (llama_decode(context, batch)) return 1;

    FILE * out = fopen(arguments[3], "wb");
    if (!out) return 1;
    const size_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int at = 0; at < batch.n_tokens; at++) {
        if (fwrite(llama_get_logits_ith(context, at), sizeof(float), vocabulary, out) != vocabulary) return 1;
    }
    return fclose(out) ? 1 : 0;
}
