//! Any record comes back; any bytes are survived.

use super::*;
use fractal_dsl::Intrinsic;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..6).prop_map(String::from_iter)
}

/// Finite and at least 0, of any magnitude.
fn number() -> impl Strategy<Value = f64> {
    use prop::num::f64::{NORMAL, POSITIVE, SUBNORMAL, ZERO};
    prop_oneof![POSITIVE | NORMAL | SUBNORMAL | ZERO, 0.0..1.0]
}

fn any_context() -> impl Strategy<Value = Context> {
    let layout = || prop::sample::select(vec![Layout::FeatureMajor, Layout::TokenMajor]);
    let scale = any::<f32>().prop_filter("a factor is finite", |factor| factor.is_finite());
    let step = prop_oneof![
        text().prop_map(EpilogueOp::Bias),
        text().prop_map(EpilogueOp::Residual),
        Just(EpilogueOp::Gelu),
        scale.prop_map(|factor| EpilogueOp::Scale(Factor(factor))),
    ];
    let names = (text(), text(), text(), text());
    let sizes = any::<(usize, usize, usize)>();
    let epilogue = prop::collection::vec(step, 0..4);
    let dtype = prop::sample::select(DType::ALL.to_vec());
    (names, sizes, epilogue, dtype, (layout(), layout())).prop_map(|(names, (n, k, m), epilogue, dtype, layouts)| {
        let (fractal, device, versions, weights) = names;
        Context { fractal, device, versions, dtype, n, k, m, epilogue, layouts, weights }
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    let directive = prop_oneof![
        (text(), any::<usize>(), text(), text()).prop_map(|(axis, factor, outer, inner)| Directive::Split {
            axis,
            factor,
            outer,
            inner
        }),
        (text(), prop::option::of(prop::collection::vec(text(), 0..3)), any::<usize>())
            .prop_map(|(axis, per, count)| Directive::Skip { axis, per, keep: Keep::RaggedCount(count) }),
        text().prop_map(|axis| Directive::Permute { axis }),
    ];
    let intrinsic = prop::option::of(prop::sample::select(Intrinsic::ALL.to_vec()));
    let request = (intrinsic, any::<Option<usize>>(), any::<Option<bool>>()).prop_map(|(intrinsic, rows, resident)| {
        KernelRequest { intrinsic, rows, resident, ..KernelRequest::default() }
    });
    let outcome = prop_oneof![
        text().prop_map(|reason| Outcome::Failed { reason }),
        (number(), text(), number()).prop_map(|(microseconds, kernel, error)| Outcome::Timed {
            microseconds,
            kernel,
            error
        }),
    ];
    let numbers = (0.0f64..=1.0, 0.0f64..=1.0, number());
    (any_context(), prop::collection::vec(directive, 0..4), request, numbers, outcome).prop_map(
        |(context, pattern, request, (retained, density, expected), outcome)| Record {
            context,
            pattern,
            request,
            retained,
            density,
            expected,
            outcome,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_appended_is_read(records in prop::collection::vec(any_record(), 1..8)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let database = open(&path);
        for record in &records {
            database.append(record.clone()).unwrap();
        }
        let again = open(&path);
        for record in &records {
            let expected: Vec<_> = records.iter().filter(|other| other.context == record.context).cloned().collect();
            prop_assert_eq!(&database.records(&record.context), &expected);
            prop_assert_eq!(&again.records(&record.context), &expected);
            prop_assert!(again.find(&record.context, &record.pattern, &record.request).is_some());
        }
    }

    #[test]
    fn no_bytes_between_records_panic_or_hide_them(
        noise in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut damaged = line(&path, record("first", 0));
        for (place, byte) in flips {
            let at = place.index(damaged.len());
            damaged[at] = byte;
        }
        add(&path, &[&noise, &b"\n"[..], &damaged].concat());
        let (database, skipped) = Database::open(&path).unwrap();
        database.append(record("last", 1)).unwrap();
        let (again, again_skipped) = Database::open(&path).unwrap();
        prop_assert_eq!(skipped, again_skipped);
        prop_assert_eq!(database.records(&context()), again.records(&context()));
        prop_assert_eq!(of_writer(&again, "last"), [1]);
        prop_assert!(again.records(&context()).contains(&record("first", 0)));
    }
}
