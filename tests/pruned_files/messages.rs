//! What is told of files that are damaged or forged in a known way.

use super::*;
use fractal::runtime::LayerFault;

/// The message of a changed file, without the path and the layer.
fn message(weight: &StoredWeight, change: impl FnOnce(&mut Parts)) -> String {
    let mut parts = Parts::of(&file_of(weight.clone()).to_bytes().unwrap());
    change(&mut parts);
    let error = read(&parts.bytes()).expect_err("the file was changed").to_string();
    let rest = error.strip_prefix("m.safetensors: ").unwrap_or_else(|| panic!("{error}"));
    rest.strip_prefix("layer `up`: ").unwrap_or(rest).to_owned()
}

#[test]
fn what_is_wrong_is_told() {
    let damaged = "; the file is damaged: write it again";
    let [packed, dense, mask] = kinds(&two_of_four());
    let check = |weight: &StoredWeight, change: &dyn Fn(&mut Parts), expected: &str| {
        assert_eq!(message(weight, change), expected);
    };
    let entry = |parts: &mut Parts, field: &str, value: Value| parts.layers["layers"]["up"][field] = value;
    // The description.
    check(
        &packed,
        &|p| p.layers["format"] = 2.into(),
        "expected format 1, found 2; read the file with the version of fractal that wrote it, or a newer one",
    );
    check(
        &packed,
        &|p| entry(p, "retained", 1.5.into()),
        &format!("`retained`: expected a number from 0 to 1, found 1.5{damaged}"),
    );
    check(
        &packed,
        &|p| entry(p, "kept", 9.into()),
        &format!("`kept`: expected 8 to 8, as many as values that are not zero and as are selected, found 9{damaged}"),
    );
    check(
        &mask,
        &|p| entry(p, "dtype", "f16".into()),
        &format!("`dtype`: expected none of a mask, found a value{damaged}"),
    );
    check(&packed, &|p| entry(p, "dtype", Value::Null), &format!("`dtype`: expected a value, found none{damaged}"));
    for (field, value) in [
        ("n", json!(-1)),
        ("n", json!(1.5)),
        ("kind", json!("packd")),
        ("pattern", json!("2:4")),
        ("dtype", json!("f64")),
        ("more", json!(1)),
    ] {
        let text = message(&packed, |p| entry(p, field, value));
        assert!(text.starts_with("`fractal` in `__metadata__`: ") && text.ends_with(damaged), "{text}");
    }
    for text in
        ["split(k);", "let (ko, ki) = split(k, 4); skip(kx, per = n, keep = 1);", "tile(n, 64);", "\"", "(((", "n:1 ^"]
    {
        let text = message(&packed, |p| entry(p, "pattern", json!([text])));
        assert!(
            text.starts_with("`pattern`: expected the statements of a pattern for its n and k, found:\n"),
            "{text}"
        );
    }
    let long = message(&packed, |p| entry(p, "pattern", json!(vec!["reorder(n, k);"; 1000])));
    assert_eq!(
        long,
        format!("`pattern`: expected at most 256 statements of 16384 bytes together, found 1000 of 14000{damaged}")
    );
    // Sizes.
    for (n, k) in [(0u64, 8u64), (1 << 31, 1 << 31), (u64::MAX, 8), (1 << 31, 8)] {
        let text = message(&packed, |p| (entry(p, "n", n.into()), entry(p, "k", k.into())).0);
        assert!(text.starts_with("`pattern`: "), "{text}");
    }
    let large = message(&packed, |p| (entry(p, "n", (1 << 20).into()), entry(p, "k", (1 << 20).into())).0);
    assert!(large.starts_with("a 1048576x1048576 weight of this pattern takes "), "{large}");
    // Splits that pad to more than a number holds.
    let mut tower = vec!["let (a12, b12) = split(k, 79);".to_owned()];
    tower.extend((2..79).rev().map(|len| {
        format!(
            "let (a{len}x, b{len}x) = split(b{}, {len});",
            if len == 78 { "12".into() } else { format!("{}x", len + 1) }
        )
    }));
    let tower = message(&packed, |p| (entry(p, "k", 80.into()), entry(p, "pattern", json!(tower))).0);
    assert!(tower.contains("entries in memory; expected at most 2097152"), "{tower}");
    // Tensors.
    check(
        &packed,
        &|p| p.tensor("up.fractal.values").0 = "values".into(),
        &format!("expected a tensor `up.fractal.values`, found none{damaged}"),
    );
    check(
        &packed,
        &|p| p.tensor("up.fractal.values").2 = vec![2.into(), 4.into()],
        &format!("tensor `up.fractal.values`: expected F32 [8], found F32 [2, 4]{damaged}"),
    );
    check(
        &packed,
        &|p| p.tensor("up.fractal.values").1 = "I32".into(),
        &format!("tensor `up.fractal.values`: expected F32 [8], found I32 [8]{damaged}"),
    );
    check(
        &packed,
        &|p| p.tensors.push(("up.fractal.kept.0".into(), "U8".into(), vec![1.into()], vec![0])),
        "expected tensors of the layers alone under names with `.fractal.`, found `up.fractal.kept.0`, which no layer needs; \
         the file is damaged: write it again",
    );
    let three =
        format!("selection does not fit the pattern: step #1: at most 2 iterations in region 0, found 3{damaged}");
    check(&packed, &|p| p.tensor("up.fractal.bits.0").3[0] = 0b1010_0111, &three);
    check(&dense, &|p| p.tensor("up.fractal.bits.0").3[0] = 0b1010_0111, &three);
    check(
        &mask,
        &|p| p.tensor("up.fractal.bits.0").3[1] = 0b0001_0011,
        &format!("selection does not fit the pattern: step #1: 2 iterations in region 3, found 1{damaged}"),
    );
    // 3 of 4 as a list: the counts say so, or an iteration is there twice.
    let listed = |p: &mut Parts, kept: Vec<u8>, counts: Option<Vec<u8>>| {
        let tensor = |name: &str, bytes: Vec<u8>| (name.to_owned(), "U8".to_owned(), vec![bytes.len().into()], bytes);
        p.tensors.retain(|(name, ..)| !name.contains("bits"));
        p.tensors.push(tensor("up.fractal.kept.0", kept));
        p.tensors.extend(counts.map(|counts| tensor("up.fractal.counts.0", counts)));
    };
    check(
        &packed,
        &|p| listed(p, vec![0b0100_0100, 0b0100_0101], None),
        &format!(
            "selection does not fit the pattern: step #1: each iteration once in region 2, found 1 twice{damaged}"
        ),
    );
    check(
        &packed,
        &|p| listed(p, vec![0b0010_0100, 1], Some(vec![0b0010_1011])),
        &format!("tensor `up.fractal.counts.0`: expected at most 2 kept iterations in region 0, found 3{damaged}"),
    );
    check(
        &packed,
        &|p| listed(p, vec![0b0100_0100, 0b0100_0100, 0], None),
        &format!(
            "tensor `up.fractal.kept.0`: expected U8 [2], 8 entries of 2 bits and zeros after them, found U8 [3]{damaged}"
        ),
    );
    // Values.
    for bad in [f32::NAN, f32::INFINITY] {
        check(
            &packed,
            &|p| p.tensor("up.fractal.values").3[4..8].copy_from_slice(&bad.to_le_bytes()),
            &format!("tensor `up.fractal.values`: entry [1] is {bad}; expected finite numbers: mend the checkpoint"),
        );
        check(
            &dense,
            &|p| p.tensor("up.weight").3[36..40].copy_from_slice(&bad.to_le_bytes()),
            &format!("tensor `up.weight`: entry [1, 1] is {bad}; expected finite numbers: mend the checkpoint"),
        );
    }
    let bits = Parts::of(&file_of(dense.clone()).to_bytes().unwrap()).tensor("up.fractal.bits.0").3[0];
    let dropped = (0..8).find(|bit| bits >> bit & 1 == 0).unwrap();
    check(
        &dense,
        &|p| p.tensor("up.weight").3[4 * dropped..][..4].copy_from_slice(&2.5f32.to_le_bytes()),
        &format!(
            "the weight at (0, {dropped}) is 2.5; expected 0, for it was pruned: apply the mask again after training"
        ),
    );
    check(
        &mask,
        &|p| p.tensor("up.mask").3[dropped] = 2,
        &format!(
            "tensor `up.mask`: entry (0, {dropped}) is 2; expected 0, as the selection says: write the file again"
        ),
    );
    let ragged = StoredWeight::Packed(pruned(&pattern("tw:4", 6, 8, 0.5, DType::F16), DType::F16, 5));
    let text = message(&ragged, |p| p.tensor("up.fractal.values").3.iter_mut().rev().take(2).for_each(|b| *b = 0x11));
    assert!(text.contains("expected 0 in a place that no weight fills"), "{text}");
    // An iteration in the padding of a tail.
    let tail = StoredWeight::Packed(pruned(&pattern("2:4", 1, 7, 0.5, DType::F32), DType::F32, 5));
    let text = message(&tail, |p| p.tensor("up.fractal.bits.0").3[0] = 0b1001_0011);
    assert_eq!(
        text,
        format!(
            "selection does not fit the pattern: step #1: iterations that hold an element in region 1, found 3, which holds none{damaged}"
        )
    );
    // An order that is none.
    let shuffled = StoredWeight::Packed(pruned(&pattern("shfl-vw:4", 16, 8, 0.5, DType::F32), DType::F32, 5));
    let text = message(&shuffled, |p| p.tensor("up.fractal.order.0").3[0] = 0x33);
    assert!(
        text.contains("expected a permutation of 16 iterations")
            || text.contains("a permutation of 16 iterations, found"),
        "{text}"
    );
}

#[test]
fn what_is_wrong_with_a_residue_is_told() {
    let damaged = "; the file is damaged: write it again";
    // Row 0 keeps columns 0 and 1 and restores 2 and 3; row 1 keeps 4 and 5 and restores none.
    let scores = vec![9., 8., 7., 6., 0., 0., 0., 0., 0., 0., 0., 0., 9., 8., 0., 0.];
    let pattern = pattern("ew", 2, 8, 0.25, DType::F16);
    let weight = Tensor::from_f32(DType::F16, 2, 8, &scores).unwrap();
    let pruned = prune_with_residue(&pattern, &weight, &Given(scores), 0.125).unwrap();
    let [packed, dense, mask] = kinds(&pruned);
    let mut parts = Parts::of(&file_of(packed.clone()).to_bytes().unwrap());
    let entries =
        |name: &str, bytes: &[u8]| (name.to_owned(), "U8".to_owned(), vec![bytes.len().into()], bytes.to_vec());
    let (counts, columns, values) =
        ("up.fractal.residue.counts", "up.fractal.residue.columns", "up.fractal.residue.values");
    assert_eq!(*parts.tensor(counts), entries(counts, &[0x02]));
    assert_eq!(*parts.tensor(columns), entries(columns, &[0x32]));
    let halves = [7.0f32, 6.0].map(half).concat();
    assert_eq!(*parts.tensor(values), (values.into(), "F16".into(), vec![2.into()], halves));
    for weight in [&packed, &dense, &mask] {
        let check = |change: &dyn Fn(&mut Parts), expected: &str| {
            assert_eq!(message(weight, change), format!("{expected}{damaged}"));
        };
        check(
            &|p| p.tensor(counts).3[0] = 0x09,
            &format!("tensor `{counts}`: expected at most 8 elements in row 0, found 9"),
        );
        check(
            &|p| p.tensor(counts).3[0] = 0,
            &format!("tensor `{counts}`: expected elements, or no such tensor, found none"),
        );
        check(
            &|p| *p.tensor(counts) = entries(counts, &[2, 0]),
            &format!("tensor `{counts}`: expected U8 [1], 2 entries of 4 bits and zeros after them, found U8 [2]"),
        );
        check(
            &|p| p.tensor(counts).3[0] = 0x03,
            &format!("tensor `{columns}`: expected U8 [2], 3 entries of 4 bits and zeros after them, found U8 [1]"),
        );
        check(
            &|p| p.tensor(columns).3[0] = 0x22,
            &format!("tensor `{columns}`: expected columns that rise in row 0, found 2 before 2"),
        );
        check(
            &|p| p.tensor(columns).3[0] = 0x82,
            &format!("tensor `{columns}`: expected columns below 8 in row 0, found 8"),
        );
        check(
            &|p| p.tensor(columns).3[0] = 0x21,
            &format!("tensor `{columns}`: expected elements that the pattern drops, found (0, 1), which it keeps"),
        );
        check(
            &|p| p.tensors.retain(|(name, ..)| name != columns),
            &format!("expected a tensor `{columns}`, found none"),
        );
        check(&|p| p.tensors.retain(|(name, ..)| name != counts), &format!("expected a tensor `{counts}`, found none"));
    }
    let nan = half(f32::NAN);
    assert_eq!(
        message(&packed, |p| p.tensor(values).3[2..].copy_from_slice(&nan)),
        format!("tensor `{values}`: entry [1] is NaN; expected finite numbers: mend the checkpoint")
    );
    assert_eq!(
        message(&packed, |p| p.tensors.retain(|(name, ..)| name != values)),
        format!("expected a tensor `{values}`, found none{damaged}")
    );
    for weight in [&packed, &dense] {
        assert_eq!(
            message(weight, |p| p.layers["layers"]["up"]["kept"] = 5.into()),
            format!(
                "`kept`: expected 6 to 6, as many as values that are not zero and as are selected, found 5{damaged}"
            )
        );
    }
    assert_eq!(
        message(&dense, |p| p.tensor("up.weight").3[8..10].copy_from_slice(&half(2.5))),
        "the weight at (0, 4) is 2.5; expected 0, for it was pruned: apply the mask again after training"
    );
    assert_eq!(
        message(&mask, |p| p.tensor("up.mask").3[2] = 0),
        "tensor `up.mask`: entry (0, 2) is 0; expected 1, as the selection says: write the file again"
    );
}

/// The bytes of a value of f16.
fn half(value: f32) -> Vec<u8> {
    half::f16::from_f32(value).to_le_bytes().to_vec()
}

#[test]
fn what_is_no_such_file_is_told() {
    let bytes = file_of(StoredWeight::Packed(two_of_four())).to_bytes().unwrap();
    let fails = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    let whole = "the file is damaged or was not copied whole: fetch it again";
    let len = bytes.len();
    assert_eq!(fails(&[]), format!("m.safetensors: expected 8 bytes by its header, found 0; {whole}"));
    assert_eq!(
        fails(&bytes[..len - 1]),
        format!("m.safetensors: expected {len} bytes by its header, found {}; {whole}", len - 1)
    );
    assert_eq!(
        fails(&[&bytes[..], &[0]].concat()),
        format!("m.safetensors: expected {len} bytes by its header, found {}; {whole}", len + 1)
    );
    let plain = with_header("{\"__metadata__\":{\"format\":\"pt\"}}", &[]);
    assert_eq!(
        fails(&plain),
        "m.safetensors: expected the key `fractal` in `__metadata__`, found `format`; a plain checkpoint has to be pruned first"
    );
    assert!(fails(&with_header("{}", &[])).contains("found none; a plain"));
    for (header, expected) in [
        ("[]", "its header: "),
        ("{\"a\":1}", "its header: "),
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", "expected bytes 0 to 2, found 0 to 1"),
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", "expected bytes 0 to 2, found 1 to 3"),
        ("{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", "expected a shape that fits a file"),
        (
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615,2],\"data_offsets\":[0,1]}}",
            "expected a shape that fits",
        ),
    ] {
        assert!(
            fails(&with_header(header, &[0])).contains(expected),
            "{header}: {}",
            fails(&with_header(header, &[0]))
        );
    }
    // Sizes whose sum overflows.
    let huge = (1u64 << 61) - 1;
    let tensors: Vec<String> = (0..9u64)
        .map(|i| {
            format!(
                "\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[{huge}],\"data_offsets\":[{},{}]}}",
                i.wrapping_mul(huge),
                (i + 1).wrapping_mul(huge)
            )
        })
        .collect();
    for count in [7, 8, 9] {
        fails(&with_header(&format!("{{{}}}", tensors[..count].join(",")), &[]));
    }
    fails(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
    fails(&with_header(&"[".repeat(100_000), &[]));
}

#[test]
fn faults_are_told_apart() {
    let parts = Parts::of(&file_of(StoredWeight::Packed(two_of_four())).to_bytes().unwrap());
    let mut forged = parts.clone();
    forged.tensor("up.fractal.bits.0").3[0] = 0xff;
    let error = read(&forged.bytes()).unwrap_err();
    assert!(matches!(error, PrunedFileError::Layer { fault: LayerFault::Selection(_), .. }));
}
