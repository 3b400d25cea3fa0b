#include <cstring>
#include <memory>

#include "capstan/checkpoint/deepspeed/export.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/deepspeed/pickle_reader.h"
#include "capstan/checkpoint/deepspeed/pickle_writer.h"
#include "capstan/checkpoint/deepspeed/python_json.h"
#include "capstan/checkpoint/deepspeed/torch_archive.h"
#include "capstan/checkpoint/file_bytes.h"
#include "capstan/checkpoint/hugging_face.h"
#include "capstan/checkpoint/safetensors.h"
#include "tests/checkpoint/trained_fixture.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/readers.h"

namespace capstan::test {
namespace {

using std::string_literals::operator""s;

template <typename Number>
std::string raw(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// As torch.save stores them: nothing is compressed.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string file;
  std::string directory;
  for (const auto& [name, bytes] : members) {
    const auto size = static_cast<std::uint32_t>(bytes.size());
    const auto name_size = static_cast<std::uint16_t>(name.size());
    directory += "PK\1\2"s + std::string(16, '\0') + raw(size) + raw(size) + raw(name_size) +
                 std::string(12, '\0') + raw(static_cast<std::uint32_t>(file.size())) + name;
    file += "PK\3\4"s + std::string(14, '\0') + raw(size) + raw(size) + raw(name_size) +
            std::string(2, '\0') + name + bytes;
  }
  const auto count = static_cast<std::uint16_t>(members.size());
  return file + directory + "PK\5\6"s + std::string(4, '\0') + raw(count) + raw(count) +
         raw(static_cast<std::uint32_t>(directory.size())) +
         raw(static_cast<std::uint32_t>(file.size())) + std::string(2, '\0');
}

// The same index, with every tensor cut in two along its first dimension where it has more rows
// than one.
std::string in_slices(checkpoint::Index index) {
  for (checkpoint::Column& column : index.columns) {
    for (checkpoint::IndexTensor& tensor : column.tensors) {
      if (tensor.spec.shape.empty() || tensor.spec.shape.front() < 2) continue;
      checkpoint::StoredSlice first = tensor.slices.front();
      checkpoint::StoredSlice second = first;
      first.box.length[0] = 1;
      second.box.offset[0] = 1;
      second.box.length[0] -= 1;
      for (checkpoint::StoredSlice* const slice : {&first, &second}) {
        slice->blocks = {{slice_spec(tensor.spec, slice->box).bytes(), 0}};
      }
      tensor.slices = {first, second};
    }
  }
  return checkpoint::to_json(index);
}

// The files of a small checkpoint in each of DeepSpeed's layouts.
struct Seeds {
  Seeds() {
    const TempFolder folder;
    const auto ours = checkpoint::save_trained(folder.path() / "ours");
    index = checkpoint::read_text_file(ours / checkpoint::kIndexFile);
    weights = checkpoint::read_text_file(ours / "model.safetensors");
    checkpoint::Reader reader(ours);
    sliced_index = in_slices(reader.index());
    for (const int stage : {0, 2, 3}) {
      const auto theirs = folder.path() / std::to_string(stage);
      checkpoint::export_deepspeed(reader, theirs, {.stage = stage, .ranks = 1});
      for (const auto& entry : std::filesystem::directory_iterator(theirs / "step5")) {
        archives.push_back(checkpoint::read_text_file(entry.path()));
        pickles.push_back(checkpoint::write_pickle(checkpoint::TorchArchive(entry.path()).root()));
      }
    }
  }
  std::string index;
  std::string sliced_index;
  std::string weights;
  std::vector<std::string> archives;
  std::vector<std::string> pickles;
};

std::vector<std::string> pickle_tokens() {
  return {"]",
          "}",
          ")",
          "(",
          "t",
          "e",
          "u",
          "a",
          "s",
          "q\0"s,
          "h\0"s,
          "h\1"s,
          "R",
          "b",
          "Q",
          ".",
          "\x85",
          "\x86",
          "\x87",
          "\x94",
          "K\1",
          "N",
          "\x88",
          "0",
          "X\1\0\0\0x"s,
          "]q\0h\0a"s,
          "\x8a\x08\0\0\0\0\0\0\0\x40"s,
          "J\xff\xff\xff\xff",
          "G\x7f\xf0\0\0\0\0\0\0"s,
          "ctorch._utils\n_rebuild_tensor_v2\n",
          "ccollections\nOrderedDict\n",
          "]]]]]]]]aaaaaaa",
          "X\6\0\0\0module"s,
          "X\5\0\0\0numel"s,
          "X\5\0\0\0start"s};
}

FuzzReader pickle_reader(const Seeds& seeds) {
  std::vector<std::string> texts = seeds.pickles;
  texts.push_back("\x80\4\x95\0\0\0\0\0\0\0\0}\x94(\x8c\1a\x94]\x94(K\1K\2\x86\x94h\2eu."s);
  return {.name = "pickle",
          .corpus = {.texts = std::move(texts), .tokens = pickle_tokens()},
          .read =
              [](const std::string& input) {
                const checkpoint::PyRef root = checkpoint::read_pickle(input, "fuzz");
                try {
                  checkpoint::to_json(*root, "fuzz");
                  // Tensors are no JSON, and most of these hold some.
                  // NOLINTNEXTLINE(bugprone-empty-catch)
                } catch (const ConfigError&) {
                }
              },
          .bytes_per_byte = 8000};
}

FuzzReader zip_reader(const Seeds& seeds) {
  return {.name = "zip",
          .corpus = {.texts = seeds.archives, .tokens = {"PK\1\2", "PK\3\4", "PK\5\6", "PK\6\6"}},
          .read =
              [file = std::make_shared<MemoryFile>()](const std::string& input) {
                file->set(input);
                const checkpoint::TorchArchive archive(file->path());
                for (const auto& [key, value] : archive.root().dict) {
                  if (value->kind == checkpoint::PyKind::tensor) archive.span_of(value->tensor);
                }
              },
          .bytes_per_byte = 8000};
}

// Changed pickles in whole archives, through everything that makes a checkpoint of them.
FuzzReader deepspeed_reader(const Seeds& seeds) {
  struct Folder {
    TempFolder folder;
    MemoryFile model;
    MemoryFile optim;
  };
  const auto to = std::make_shared<Folder>();
  std::filesystem::create_symlink(to->model.path(), to->folder / "mp_rank_00_model_states.pt");
  std::filesystem::create_symlink(to->optim.path(),
                                  to->folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt");
  const auto is_optim = [](const std::string& pickle) {
    return pickle.find("zero_stage") != std::string::npos;
  };
  const auto archive_of = [](const std::string& pickle) {
    std::vector<std::pair<std::string, std::string>> members = {{"x/data.pkl", pickle}};
    for (int i = 0; i < 16; ++i) {
      members.emplace_back("x/data/" + std::to_string(i), std::string(800, '\0'));
    }
    return zip_of(members);
  };
  std::vector<std::string> goods(2);  // a model's and an optimizer's of one save (stage 2)
  for (const std::string& pickle : seeds.pickles) {
    if (is_optim(pickle) && pickle.find("param_slice_mappings") == std::string::npos) continue;
    if (goods[is_optim(pickle) ? 1 : 0].empty()) goods[is_optim(pickle) ? 1 : 0] = pickle;
  }
  return {.name = "deepspeed",
          .corpus = {.texts = seeds.pickles, .tokens = pickle_tokens()},
          .read =
              [to, is_optim, archive_of, goods](const std::string& input) {
                to->model.set(archive_of(is_optim(input) ? goods[0] : input));
                to->optim.set(archive_of(is_optim(input) ? input : goods[1]));
                checkpoint::Reader reader = checkpoint::open_reader(to->folder.path());
                for (const checkpoint::Column& column : reader.index().columns) {
                  for (const checkpoint::IndexTensor& tensor : column.tensors) {
                    reader.read(tensor, 0, std::min<std::int64_t>(tensor.spec.bytes(), 100),
                                [](std::int64_t, std::span<const std::byte>) {});
                  }
                }
              },
          .bytes_per_byte = 16'000};
}

FuzzReader safetensors_reader(const Seeds& seeds) {
  return {.name = "safetensors",
          .corpus = {.texts = {seeds.weights},
                     .tokens = {"\"F32\"", "\"data_offsets\"", "[0, 4611686018427387904]", "[]",
                                "\"a\": {", "}", "{", "\"shape\": [4611686018427387904, 4]"},
                     .values = {" 0", " -1", " [0, 8]", " [9223372036854775807]", " \"BF16\"",
                                " \"I64\"", " {}", " [4294967296, 4294967296]", " null"}},
          .read = [file = std::make_shared<MemoryFile>()](const std::string& input) {
            file->set(input);
            checkpoint::read_safetensors(io::File::open(file->path(), {}));
          }};
}

FuzzReader index_reader(const Seeds& seeds) {
  return {.name = "index",
          .corpus = {.texts = {seeds.index, seeds.sliced_index},
                     .tokens = {"\"../../x\"", "\"\"", "[", "]", "{", "}", "\"$tensor\"",
                                "\"blocks\": []", "\"slices\": []", "9223372036854775807", "-1",
                                "1e999", "NaN"},
                     .values = {" 0", " -1", " 9223372036854775807", " 1e300", " null", " []",
                                " {}", " \"\"", " \"../x\"", " \"model.safetensors\"", " true"}},
          .read = [](const std::string& input) {
            const std::string text =
                checkpoint::to_json(checkpoint::index_from_json(input, "fuzz"));
            if (checkpoint::to_json(checkpoint::index_from_json(text, "again")) != text) {
              throw std::logic_error("what was written reads back different");
            }
          }};
}

FuzzReader weights_list_reader(const Seeds& seeds) {
  const auto folder = std::make_shared<TempFolder>();
  const auto file = std::make_shared<MemoryFile>();
  const auto weights = std::make_shared<MemoryFile>();
  weights->set(seeds.weights);
  std::filesystem::create_symlink(file->path(), *folder / "model.safetensors.index.json");
  std::filesystem::create_symlink(weights->path(), *folder / "a.safetensors");
  return {.name = "weights-list",
          .corpus = {.texts = {R"({"metadata": {"total_size": 8}, "weight_map": {"a":
                                   "a.safetensors", "b": "a.safetensors"}})"},
                     .tokens = {"\"../a\"", "\"/etc/passwd\"", "\"b.safetensors\"", "{", "}"},
                     .values = {" \"../a\"", " null", " {}", " [\"a\"]", " \"b.safetensors\""}},
          .read = [folder, file, weights](const std::string& input) {
            file->set(input);
            checkpoint::open_hugging_face(folder->path());
          }};
}

}  // namespace

std::vector<FuzzReader> checkpoint_readers() {
  const Seeds seeds;
  return {pickle_reader(seeds),      zip_reader(seeds),   deepspeed_reader(seeds),
          safetensors_reader(seeds), index_reader(seeds), weights_list_reader(seeds)};
}

}  // namespace capstan::test
