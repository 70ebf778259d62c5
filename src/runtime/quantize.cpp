// takt::quantize over the model layer's writer; see quantize.h.
#include <filesystem>

#include <takt/error.h>
#include <takt/quantize.h>

#include "model/quantize.h"

namespace takt {

QuantizeReport quantize(const std::string& in, const std::string& out, const std::string& format,
                        const std::function<void(const QuantizedTensorReport&)>& on_tensor) {
    const std::optional<GptqConfig> gptq = gptq_format(format);
    const Result<DType> type = quantize_format(format);
    if (!gptq && !type) throw config_error(type.error());
    std::error_code ignored;
    if (gptq && !std::filesystem::is_directory(in, ignored)) {
        throw config_error("format \"" + format + "\" is for Hugging Face folders, " + in + " is none");
    }
    if (!gptq && std::filesystem::is_directory(in, ignored)) {
        throw config_error("format \"" + format + "\" is for GGUF files, " + in + " is a folder: w8, w4g128 and w3g128 are for those");
    }
    const auto report = [&](const QuantizedTensor& t) {
        if (on_tensor) on_tensor({t.name, dtype_info(t.from).name, dtype_info(t.to).name, t.relative_error, t.largest_error});
    };
    const Result<QuantizeTotals> totals =
        gptq ? quantize_folder(in, out, *gptq, report) : quantize_gguf(in, out, type.value(), report);
    if (!totals) throw load_error(errc::bad_request, totals.error());
    return {static_cast<int64_t>(totals.value().bytes_in), static_cast<int64_t>(totals.value().bytes_out)};
}

}  // namespace takt
