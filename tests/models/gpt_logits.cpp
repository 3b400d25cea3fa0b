// Reads a GPT-2 and some tokens from a folder, writes the model's logits, loss and gradients there.
// Files: sizes.txt "vocab context width layers heads batch tokens"; weights.txt, a line "name d0 d1
// …" per tensor; weights.bin, their fp32 elements one after another; ids.bin, int64. Out:
// logits.bin, loss.txt, grads.txt and grads.bin in the same form.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/Functions.h>

#include "capstan/models/gpt.h"
#include "capstan/models/weights.h"

namespace {

namespace fs = std::filesystem;
using capstan::models::Gpt;

at::Tensor read_tensor(std::ifstream& file, const std::vector<std::int64_t>& shape,
                       at::ScalarType dtype) {
  at::Tensor tensor = at::empty(shape, dtype);
  file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file) throw std::runtime_error("a file is too short");
  return tensor;
}

void write_tensor(std::ofstream& file, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  file.write(static_cast<const char*>(whole.data_ptr()),
             static_cast<std::streamsize>(whole.nbytes()));
}

std::map<std::string, at::Tensor> read_weights(const fs::path& folder) {
  std::map<std::string, at::Tensor> weights;
  std::ifstream index(folder / "weights.txt");
  std::ifstream bytes(folder / "weights.bin", std::ios::binary);
  for (std::string line; std::getline(index, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    std::vector<std::int64_t> shape;
    for (std::int64_t size = 0; words >> size;) shape.push_back(size);
    weights[name] = read_tensor(bytes, shape, at::kFloat);
  }
  return weights;
}

void run(const fs::path& folder) {
  capstan::models::GptOptions options;
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::ifstream(folder / "sizes.txt") >> options.vocab >> options.context >> options.width >>
      options.layers >> options.heads >> batch >> tokens;
  Gpt model(options);
  const auto weights = read_weights(folder);
  capstan::models::load_weights(*model, [&](const std::string& name) -> std::optional<at::Tensor> {
    const auto found = weights.find(name);
    if (found == weights.end()) return std::nullopt;
    return found->second;
  });
  model->eval();
  std::ifstream ids_file(folder / "ids.bin", std::ios::binary);
  const at::Tensor ids = read_tensor(ids_file, {batch, tokens}, at::kLong);
  std::ofstream logits_file(folder / "logits.bin", std::ios::binary);
  write_tensor(logits_file, model->logits(ids).narrow(2, 0, options.vocab));
  const at::Tensor targets = at::cat({ids.slice(1, 1), at::full({batch, 1}, -100, at::kLong)}, 1);
  const at::Tensor loss = model(ids, targets);
  loss.backward();
  std::ofstream(folder / "loss.txt") << loss.item<float>() << "\n";
  std::ofstream grads_index(folder / "grads.txt");
  std::ofstream grads_file(folder / "grads.bin", std::ios::binary);
  for (const auto& item : model->named_parameters()) {
    const bool padded = item.key() == "transformer.wte.weight";
    const at::Tensor gradient =
        padded ? item.value().grad().narrow(0, 0, options.vocab) : item.value().grad();
    grads_index << item.key();
    for (const std::int64_t size : gradient.sizes()) grads_index << " " << size;
    grads_index << "\n";
    write_tensor(grads_file, gradient);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: gpt_logits FOLDER");
    run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_logits: %s\n", error.what());
    return 1;
  }
}
