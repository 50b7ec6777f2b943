"""GGUF files whose weights are encoded anew, by the Python package gguf."""


def write_as(encoding, source, target):
    """Writes a GGUF file with the same metadata, whose quantized tensors have another encoding ("BF16", "Q8_0")."""
    import gguf
    reader = gguf.GGUFReader(source)
    field = {name: value.contents() for name, value in reader.fields.items()}
    writer = gguf.GGUFWriter(target, field['general.architecture'])
    kinds = gguf.GGUFValueType
    for name, value in reader.fields.items():
        if name.startswith('GGUF.') or name in ('general.architecture', 'general.file_type', 'general.quantization_version'):
            continue
        element = value.types[-1] if value.types[0] == kinds.ARRAY else None
        writer.add_key_value(name, field[name], value.types[0], element)
    writer.add_file_type(getattr(gguf.LlamaFileType, f'MOSTLY_{encoding}'))
    wanted, f32 = gguf.GGMLQuantizationType[encoding], gguf.GGMLQuantizationType.F32
    for tensor in reader.tensors:
        if tensor.tensor_type == f32:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
