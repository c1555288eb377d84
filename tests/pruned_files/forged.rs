//! Random damage and forgery: an error, or a weight that runs right.

use super::*;
use fractal::Device;
use fractal::cuda::DeviceTiles;
use fractal::runtime::Residue;
use fractal::sched::codegen::KernelConfig;
use fractal::sched::codegen::tables::{position_place, position_words};
use support::allowed;
use support::oracle::masked_gemm;

/// Whatever was read computes what its dense weight does, on the CPU as compiled and in a GPU's tables.
pub fn runs(pruned: &Pruned, seed: u64) {
    let (pattern, dtype) = (pruned.pattern(), pruned.dtype());
    let (n, k, m) = (pattern.n(), pattern.k(), 3);
    if n * k > 1 << 14 {
        return;
    }
    let at = || format!("{dtype} {n}x{k} {:?}", pattern.steps());
    pruned.selection().check_filled(pattern).unwrap();
    let mask = pruned.mask();
    let restored = pruned.residue().map_or(0, Residue::len);
    assert_eq!(mask.count(), pattern.mask(pruned.selection()).unwrap().count() + restored, "{}", at());
    assert!(pruned.kept() <= mask.count() && (0.0..=1.0).contains(&pruned.retained()) && pruned.dense().is_finite());
    let mut rng = StdRng::seed_from_u64(seed);
    let x: Vec<f32> = (0..k * m).map(|_| rng.random_range(-1.0f32..1.0)).collect();
    let x = Tensor::from_f32(dtype, k, m, &x).unwrap();
    let gemm = Gemm::new(pattern.clone(), dtype);
    let layer =
        Device::cpu().compile(&gemm).and_then(|kernel| kernel.load(pruned)).unwrap_or_else(|e| panic!("{}: {e}", at()));
    let y = layer.run(&x, &[]).unwrap_or_else(|e| panic!("{}: {e}", at())).to_f32();
    let dense = pruned.dense().to_f32();
    let expected = masked_gemm(&dense, &|n, k| mask.contains(n, k), &x.to_f32(), (n, k, m), &[]);
    // Beyond, a sum may overflow its type.
    let most = if dtype == DType::F16 { 6e4 } else { 1e38 };
    for (place, &found) in y.iter().enumerate().filter(|(place, _)| expected.magnitude[*place] < most) {
        let (exact, magnitude) = (expected.y[place], expected.magnitude[place]);
        let error = (f64::from(found) - exact).abs();
        assert!(error <= allowed(dtype, k, exact, magnitude), "{}: {found}, expected {exact}", at());
    }
    for sm in [80, 90] {
        if let Ok((config, tables)) = KernelPlan::new(&gemm, sm).and_then(|plan| plan.lay_out(pruned)) {
            assert!(tables.rows.iter().all(|&row| row < n as i32), "{}", at());
            assert!(tables.columns.iter().all(|&column| column < k as i32), "{}", at());
            assert!(tables.begin.is_sorted(), "{}", at());
            let elements = tables.residue.iter().flat_map(|residue| &residue.elements).map(|element| element.0);
            assert!(elements.clone().all(|column| column < k as i32), "{}", at());
            assert_eq!(elements.filter(|&column| column >= 0).count(), restored, "{}", at());
            assert!(!config.intrinsic.is_sparse() || positions_rise(&config, &tables), "{}", at());
        }
    }
}

/// 2 of 4 are two different ones, in the order in which tensor cores take them.
fn positions_rise(config: &KernelConfig, tables: &DeviceTiles) -> bool {
    let words = position_words(config);
    let steps = tables.begin.last().map_or(0, |&steps| steps as usize);
    (0..steps).all(|step| {
        (0..config.rows * config.stored_step() / 2).all(|pair| {
            let (row, pair) = (pair / (config.stored_step() / 2), pair % (config.stored_step() / 2));
            let (word, bit) = position_place(row, pair);
            let pair = tables.positions[step * words + word] >> bit & 15;
            pair & 3 < pair >> 2
        })
    })
}

/// An error with a text, or values that pass every check.
pub fn survives(bytes: &[u8], seed: u64) -> bool {
    match read(bytes) {
        Err(error) => {
            assert!(error.to_string().contains("m.safetensors"), "{error}");
            false
        }
        Ok(file) => {
            file.layers.values().filter_map(StoredWeight::pruned).for_each(|pruned| runs(pruned, seed));
            let again = read(&file.to_bytes().unwrap()).unwrap();
            assert!(again == file, "what was read is written and read alike");
            true
        }
    }
}

/// Numbers at the edges of types, and of what is there.
fn edge(rng: &mut StdRng, number: &Value) -> Value {
    let there = number.as_u64().unwrap_or(1);
    match rng.random_range(0..16) {
        0 => json!(0),
        1 => json!(1),
        2 => json!(there.wrapping_add(1)),
        3 => json!(there.wrapping_sub(1)),
        4 => json!(there.wrapping_mul(2)),
        5 => json!(there / 2),
        6 => json!(1u64 << 31),
        7 => json!((1u64 << 31) - 1),
        8 => json!(1u64 << 32),
        9 => json!(1u64 << 40),
        10 => json!(u64::MAX),
        11 => json!(-1),
        12 => json!(0.5),
        13 => json!(1e300),
        14 => json!(rng.random::<u64>() >> rng.random_range(0..64)),
        _ => json!(rng.random_range(0..16)),
    }
}

/// Every number of a JSON value.
fn numbers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Number(_) => found.push(value),
        Value::Array(values) => values.iter_mut().for_each(|value| numbers(value, found)),
        Value::Object(map) => map.values_mut().for_each(|value| numbers(value, found)),
        _ => {}
    }
}

fn change_number(value: &mut Value, rng: &mut StdRng) {
    let mut found = Vec::new();
    numbers(value, &mut found);
    if !found.is_empty() {
        let at = rng.random_range(0..found.len());
        *found[at] = edge(rng, found[at]);
    }
}

/// One change that leaves the container as it should be, so that the checks behind it are met.
fn change(parts: &mut Parts, rng: &mut StdRng) {
    let tensor = rng.random_range(0..parts.tensors.len());
    match rng.random_range(0..12) {
        0 => change_number(&mut parts.layers, rng),
        1 => {
            // A statement of a pattern dropped, doubled, or of another number.
            let layers = parts.layers["layers"].as_object_mut().unwrap();
            let Some(text) = layers.values_mut().next().and_then(|layer| layer["pattern"].as_array_mut()) else {
                return;
            };
            if text.is_empty() {
                text.push("skip(k, per = n, keep = 50%);".into());
                return;
            }
            let at = rng.random_range(0..text.len());
            match rng.random_range(0..4) {
                0 => drop(text.remove(at)),
                1 => text.insert(at, text[at].clone()),
                _ => {
                    let digit = char::from(b'0' + rng.random_range(0..10u8));
                    let old = text[at].as_str().unwrap_or_default();
                    let digits: Vec<usize> =
                        old.char_indices().filter(|(_, c)| c.is_ascii_digit()).map(|(i, _)| i).collect();
                    if let Some(&place) = digits.get(rng.random_range(0..digits.len().max(1))) {
                        let new: String = old.char_indices().map(|(i, c)| if i == place { digit } else { c }).collect();
                        text[at] = new.into();
                    }
                }
            }
        }
        2 => {
            let other = rng.random_range(0..parts.tensors.len());
            let name = parts.tensors[tensor].0.clone();
            parts.tensors[tensor].0 = std::mem::replace(&mut parts.tensors[other].0, name);
        }
        3 => {
            // Longer or shorter, and so its shape.
            let (_, dtype, shape, bytes) = &mut parts.tensors[tensor];
            let size = match dtype.as_str() {
                "F32" => 4,
                "F16" | "BF16" => 2,
                _ => 1,
            };
            let entries = bytes.len() / size;
            let new = [0, 1, entries + 1, entries.saturating_sub(1), 2 * entries][rng.random_range(0..5)];
            bytes.resize(new * size, rng.random());
            *shape = vec![new.into()];
        }
        4 => {
            // A list in place of bits, with or without counts.
            let (name, ..) = &mut parts.tensors[tensor];
            *name = name.replace(".bits.", ".kept.");
        }
        5 => {
            let number = rng.random_range(0..3);
            let bytes: Vec<u8> = (0..rng.random_range(0..8)).map(|_| rng.random()).collect();
            let residue = ["residue.counts", "residue.columns", "residue.values"];
            let name = match rng.random_range(0..7) {
                kind @ 0..4 => format!("up.fractal.{}.{number}", ["bits", "kept", "counts", "order"][kind]),
                kind => format!("up.fractal.{}", residue[kind - 4]),
            };
            parts.tensors.retain(|(known, ..)| *known != name);
            parts.tensors.push((name, "U8".into(), vec![bytes.len().into()], bytes));
        }
        6 => drop((parts.tensors.len() > 1).then(|| parts.tensors.remove(tensor))),
        7 => {
            // NaN, infinities, all bits.
            let bytes = &mut parts.tensors[tensor].3;
            let from = rng.random_range(0..=bytes.len());
            bytes.iter_mut().skip(from).take(4).for_each(|byte| *byte = 0xff);
        }
        8 => {
            // Two bytes change places: orders, duplicates, unsorted counts.
            let bytes = &mut parts.tensors[tensor].3;
            if !bytes.is_empty() {
                let (a, b) = (rng.random_range(0..bytes.len()), rng.random_range(0..bytes.len()));
                bytes.swap(a, b);
            }
        }
        _ => {
            let bytes = &mut parts.tensors[tensor].3;
            if !bytes.is_empty() {
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= if rng.random() { 1 << rng.random_range(0..8) } else { rng.random() };
            }
        }
    }
}

/// A file of one layer: of a named pattern or a random one.
fn some_file(rng: &mut StdRng) -> PrunedFile {
    let dtype = DType::ALL[rng.random_range(0..3)];
    let (n, k) = (rng.random_range(1..40), rng.random_range(1..40));
    let pattern = if rng.random() {
        pattern(PATTERNS[rng.random_range(0..PATTERNS.len())], n, k, 0.25, dtype)
    } else {
        let codes: Vec<(u8, u8, u8, u8)> = (0..rng.random_range(0..7)).map(|_| rng.random()).collect();
        common::pattern_from_codes(n, k, &codes)
    };
    let share = [0.0, 0.05, 0.4][rng.random_range(0..3)];
    let pruned = restored(&pattern, dtype, rng.random(), share);
    let [packed, dense, mask] = kinds(&pruned);
    let mut file = file_of([packed.clone(), packed, dense, mask][rng.random_range(0..4)].clone());
    file.others.insert("up.bias".into(), RawTensor::new(RawType::F32, vec![2], vec![0; 8]).unwrap());
    file
}

proptest! {
    #![proptest_config(config(700))]

    #[test]
    fn forged_files_are_refused_or_right(seed: u64, changes in 1usize..4) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut parts = Parts::of(&some_file(&mut rng).to_bytes().unwrap());
        (0..changes).for_each(|_| change(&mut parts, &mut rng));
        survives(&parts.bytes(), seed);
    }

    #[test]
    fn damaged_files_are_refused_or_right(seed: u64, how in 0usize..5) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut bytes = some_file(&mut rng).to_bytes().unwrap();
        match how {
            0 => bytes.truncate(rng.random_range(0..bytes.len())),
            1 => bytes.extend((0..rng.random_range(1..9)).map(|_| rng.random::<u8>())),
            2 => {
                // Any number of the header.
                let mut parts = Parts::of(&bytes);
                let data = parts.data();
                let mut header = parts.header();
                if rng.random() {
                    change_number(&mut parts.layers, &mut rng);
                    header = parts.header();
                }
                change_number(&mut header, &mut rng);
                bytes = with_header(&header.to_string(), &data);
            }
            3 => {
                let at = rng.random_range(0..8);
                bytes[at] = rng.random();
            }
            _ => {
                for _ in 0..rng.random_range(1..4) {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] ^= 1 << rng.random_range(0..8);
                }
            }
        }
        survives(&bytes, seed);
    }
}

/// Of the selections that a file could hold, those that pass run right: every byte of small index tensors.
#[test]
fn every_value_of_an_index_byte_is_refused_or_right() {
    let mut passed = 0;
    let texts = ["2:4", "tw:4", "tw-global:4", "shfl-vw:4", "vnm:4", "tvw:4", "hybrid:8x4/4x2", "ew"];
    for (text, share) in texts.map(|text| (text, 0.0)).into_iter().chain(["2:4", "tw:4"].map(|text| (text, 0.1))) {
        let weight = restored(&pattern(text, 10, 13, 0.25, DType::F16), DType::F16, 11, share);
        let kinds = kinds(&weight).into_iter().take(if share > 0.0 { 3 } else { 1 });
        for parts in kinds.map(|weight| Parts::of(&file_of(weight).to_bytes().unwrap())) {
            passed += every_byte(&parts);
        }
    }
    assert!(passed > 100, "{passed}");
}

/// How many of the files pass that have another byte in an index tensor.
fn every_byte(parts: &Parts) -> u32 {
    let mut passed = 0;
    for tensor in 0..parts.tensors.len() {
        if parts.tensors[tensor].1 == "U8" {
            for value in 0..=255 {
                let mut forged = parts.clone();
                let bytes = &mut forged.tensors[tensor].3;
                let at = usize::from(value) * 7 % bytes.len().max(1);
                bytes[at] = value;
                passed += u32::from(survives(&forged.bytes(), u64::from(value)));
            }
        }
    }
    passed
}
