//! A file as others see it: taken apart and put together by hand.

use super::*;

/// A file taken apart by hand: 8 bytes of length, JSON, tensors.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The strings, the layers' descriptions as JSON among them.
    pub strings: serde_json::Map<String, Value>,
    pub layers: Value,
    pub tensors: Vec<(String, String, Vec<Value>, Vec<u8>)>,
}

impl Parts {
    pub fn of(bytes: &[u8]) -> Parts {
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        let data = &bytes[8 + len..];
        let mut strings = header["__metadata__"].as_object().unwrap().clone();
        let layers = serde_json::from_str(strings.remove("fractal").unwrap().as_str().unwrap()).unwrap();
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, info)| {
            let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
            let bytes = data[at(0)..at(1)].to_vec();
            (name.clone(), info["dtype"].as_str().unwrap().to_owned(), info["shape"].as_array().unwrap().clone(), bytes)
        });
        Parts { strings, layers, tensors: tensors.collect() }
    }

    pub fn header(&self) -> Value {
        let mut strings = self.strings.clone();
        strings.insert("fractal".into(), self.layers.to_string().into());
        let mut header = json!({ "__metadata__": strings });
        let mut end = 0;
        for (name, dtype, shape, bytes) in &self.tensors {
            header[name] = json!({ "dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes.len()] });
            end += bytes.len();
        }
        header
    }

    pub fn bytes(&self) -> Vec<u8> {
        with_header(&self.header().to_string(), &self.data())
    }

    pub fn data(&self) -> Vec<u8> {
        self.tensors.iter().flat_map(|(.., bytes)| bytes.clone()).collect()
    }

    pub fn tensor(&mut self, name: &str) -> &mut (String, String, Vec<Value>, Vec<u8>) {
        let at = self.tensors.iter().position(|(known, ..)| known == name);
        &mut self.tensors[at.unwrap_or_else(|| panic!("no tensor {name}"))]
    }
}

pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

pub fn two_of_four() -> Pruned {
    pruned(&pattern("2:4", 2, 8, 0.5, DType::F32), DType::F32, 3)
}

#[test]
fn the_file_is_what_the_format_says() {
    let weight = Tensor::from_f32(DType::F32, 2, 8, &[9., 1., 8., 2., 1., 9., 2., 8., 7., 6., 1., 2., 1., 2., 7., 6.]);
    let pattern = pattern("2:4", 2, 8, 0.5, DType::F32);
    let pruned = prune(&pattern, &weight.unwrap(), &Magnitude).unwrap();
    let mut file = PrunedFile::default();
    let bias = RawTensor::new(RawType::I64, vec![2, 1], (0..16).collect()).unwrap();
    file.layers.insert("a".into(), StoredWeight::Packed(pruned.clone()));
    file.layers.insert("b".into(), StoredWeight::Dense(pruned.clone()));
    file.layers.insert("c".into(), StoredWeight::Mask(PrunedMask::from(&pruned)));
    file.others.insert("a.bias".into(), bias.clone());
    file.notes.insert("format".into(), "pt".into());
    file.notes.insert("zeal".into(), "great".into());
    let bytes = file.to_bytes().unwrap();
    let parts = Parts::of(&bytes);
    assert_eq!(parts.strings, json!({ "format": "pt", "zeal": "great" }).as_object().unwrap().clone());
    let text = json!(["let (ko, ki) = split(k, 4);", "skip(ki, per = (n, ko), keep = 2 of 4);"]);
    let weight = |kind: &str| json!({ "kind": kind, "n": 2, "k": 8, "pattern": text, "dtype": "f32", "kept": 8, "retained": pruned.retained() });
    let mask = json!({ "kind": "mask", "n": 2, "k": 8, "pattern": text });
    assert_eq!(
        parts.layers,
        json!({ "format": 1, "layers": { "a": weight("packed"), "b": weight("dense"), "c": mask } })
    );
    let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let bits = vec![0b1010_0101, 0b1100_0011];
    let sized = |size: u64| vec![Value::from(size)];
    let square = || vec![Value::from(2), Value::from(8)];
    let expected: Vec<(String, String, Vec<Value>, Vec<u8>)> = vec![
        ("a.bias".into(), "I64".into(), vec![2.into(), 1.into()], bias.bytes().to_vec()),
        ("a.fractal.bits.0".into(), "U8".into(), sized(2), bits.clone()),
        ("a.fractal.values".into(), "F32".into(), sized(8), f32s(&pruned.packed().values)),
        ("b.fractal.bits.0".into(), "U8".into(), sized(2), bits.clone()),
        ("b.weight".into(), "F32".into(), square(), f32s(&pruned.dense().to_f32())),
        ("c.fractal.bits.0".into(), "U8".into(), sized(2), bits),
        ("c.mask".into(), "BOOL".into(), square(), vec![1, 0, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]),
    ];
    let mut found = parts.tensors.clone();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, expected);
    // Another reader opens it, and its elements lie at multiples of their size.
    let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(other.tensor("b.weight").unwrap().data(), f32s(&pruned.dense().to_f32()));
    assert_eq!(other.tensor("b.weight").unwrap().data().as_ptr() as usize % 4, bytes.as_ptr() as usize % 4);
    assert_eq!(read(&bytes).unwrap(), file);
    // What another writer makes of the same parts is read, too.
    let views = other.tensors();
    let strings = safetensors::SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone();
    assert_eq!(read(&safetensors::serialize(views, strings).unwrap()).unwrap(), file);
}

#[test]
fn a_file_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    let file = file_of(StoredWeight::Packed(two_of_four()));
    file.write(&path).unwrap();
    assert_eq!(PrunedFile::read(&path).unwrap(), file);
    assert_eq!(std::fs::read(&path).unwrap(), file.to_bytes().unwrap());
    // What cannot be written leaves what was there, and nothing besides.
    let mut bad = file.clone();
    bad.others.insert("up.fractal.values".into(), RawTensor::new(RawType::U8, vec![1], vec![1]).unwrap());
    assert!(bad.write(&path).is_err());
    assert_eq!(PrunedFile::read(&path).unwrap(), file);
    let inside = path.join("x");
    let error = file.write(&inside).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}: ", inside.display())), "{error}");
    assert!(file.write(folder.path()).unwrap_err().to_string().contains("expected a file or nothing there"));
    assert!(PrunedFile::read(folder.path()).unwrap_err().to_string().contains("expected a file, found something else"));
    assert!(PrunedFile::read(&inside).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let other = file_of(StoredWeight::Dense(two_of_four()));
        other.write(&link).unwrap();
        assert!(link.is_symlink());
        assert_eq!(PrunedFile::read(&path).unwrap(), other);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(file.write(Path::new("/dev/null")).is_err());
    }
}

#[test]
fn names_that_the_format_needs_are_refused() {
    let raw = || RawTensor::new(RawType::U8, vec![1], vec![1]).unwrap();
    let told = |change: &dyn Fn(&mut PrunedFile), expected: &str| {
        let mut file = file_of(StoredWeight::Dense(two_of_four()));
        change(&mut file);
        assert_eq!(file.to_bytes().unwrap_err().to_string(), expected);
    };
    let reserved = "expected a name that is not `__metadata__` and holds no `.fractal.`; give it another one";
    told(&|f| drop(f.others.insert("__metadata__".into(), raw())), &format!("tensor `__metadata__`: {reserved}"));
    told(&|f| drop(f.others.insert("x.fractal.y".into(), raw())), &format!("tensor `x.fractal.y`: {reserved}"));
    let twice = "tensor `up.weight`: expected a name that no layer and no other tensor has; give it another one";
    told(&|f| drop(f.others.insert("up.weight".into(), raw())), twice);
    let note = "note `fractal`: expected a name that is not `fractal`; give it another one";
    told(&|f| drop(f.notes.insert("fractal".into(), "1".into())), note);
    let error = RawTensor::new(RawType::F32, vec![3, 5], vec![0; 59]).unwrap_err();
    assert_eq!(error.to_string(), "tensor of type F32 and shape [3, 5]: expected 60 bytes, found 59");
    assert!(RawTensor::new(RawType::F4, vec![3], vec![0; 2]).is_err());
    assert!(RawTensor::new(RawType::U8, vec![usize::MAX, 2], vec![]).is_err());
}
