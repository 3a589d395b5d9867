// Writes the logits that llama.cpp computes for a prompt with its defaults, as 32-bit floats: one row of `n_vocab`
// logits per position.
//
// Build and run, with LLAMA a checkout of llama.cpp and BUILD its built libraries:
//   g++ -std=c++17 -I $LLAMA/include -I $LLAMA/ggml/include tools/record_llama_cpp_logits.cpp \
//     -L $BUILD -lllama -lggml -lggml-base -Wl,-rpath,$BUILD -o record
//   ./record MODEL.gguf THREADS OUT ID,ID,...

#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char ** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s MODEL.gguf THREADS OUT ID,ID,...\n", argv[0]);
        return 2;
    }
    std::vector<llama_token> ids;
    for (char * next = argv[4]; *next;) {
        char * end;
        ids.push_back(strtol(next, &end, 10));
        if (end == next) {
            fprintf(stderr, "`%s` does not begin with a token id\n", next);
            return 2;
        }
        next = *end == ',' ? end + 1 : end;
    }

    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = parameters.n_batch = ids.size() + 64;
    parameters.n_threads = parameters.n_threads_batch = atoi(argv[2]);
    llama_context * context = llama_init_from_model(model, parameters);
    if (!context) return 1;

    llama_batch batch = llama_batch_init(ids.size(), 0, 1);
    batch.n_tokens = ids.size();
    for (int i = 0; i < batch.n_tokens; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    if (llama_decode(context, batch)) return 1;

    FILE * out = fopen(argv[3], "wb");
    if (!out) return 1;
    const size_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < batch.n_tokens; i++) {
        if (fwrite(llama_get_logits_ith(context, i), sizeof(float), n_vocab, out) != n_vocab) return 1;
    }
    return fclose(out) ? 1 : 0;
}
