//! Parameters that are set by name, against checkpoints that hold the same values.

use super::*;

/// The values of a tensor, each made anew from the old one.
fn change(tensors: &mut Checkpoint, name: &str, f: impl Fn(f32) -> f32) -> Vec<f32> {
    let values = &mut tensors.get_mut(name).unwrap().1;
    values.iter_mut().for_each(|v| *v = f(*v));
    values.clone()
}

#[test]
fn set_parameters_are_those_of_a_checkpoint_that_holds_them() {
    let mut tensors = checkpoint();
    let dense = load(&tensors);
    let mut set = dense.clone();
    for name in dense.linear_names() {
        // An operator in the layer's place goes when the weight is set.
        let weight = dense.weight(&name).unwrap();
        let op = DenseLinear::new(vec![0.0; weight.data.len()].into(), weight.n, weight.k).unwrap();
        set.replace(&name, Box::new(op)).unwrap();
        let weight = change(&mut tensors, &format!("{name}.weight"), |v| 0.9 * v);
        let bias = change(&mut tensors, &format!("{name}.bias"), |v| v + 0.1);
        set.set_weight(&name, weight.clone(), None).unwrap();
        assert_eq!(set.bias(&name).unwrap(), dense.bias(&name).unwrap());
        set.set_weight(&name, weight.clone(), Some(bias.clone())).unwrap();
        assert_eq!(set.weight(&name).unwrap().data, weight);
        assert_eq!(set.bias(&name).unwrap(), bias);
        let bias = change(&mut tensors, &format!("{name}.bias"), |v| v - 0.2);
        set.set_bias(&name, bias).unwrap();
    }
    let names = dense.norm_names();
    assert_eq!(names.len(), 1 + 2 * LAYERS);
    for name in names {
        let gamma = change(&mut tensors, &format!("{name}.weight"), |v| 1.1 * v);
        let beta = change(&mut tensors, &format!("{name}.bias"), |v| v - 0.1);
        set.set_norm(&name, gamma.clone(), beta.clone()).unwrap();
        assert_eq!(set.norm(&name).unwrap(), (&gamma[..], &beta[..]));
    }
    assert_eq!(set.embed(&batch()).unwrap(), load(&tensors).embed(&batch()).unwrap());
    assert_eq!(dense.embed(&batch()).unwrap(), load(&checkpoint()).embed(&batch()).unwrap());
}

#[test]
fn parameters_that_do_not_fit_are_errors_and_change_nothing() {
    let dense = load(&checkpoint());
    let mut model = dense.clone();
    let (layer, norm) = ("encoder.layer.0.output.dense", "encoder.layer.1.output.LayerNorm");
    let (weight, hidden) = (vec![0.0; HIDDEN * WIDE], vec![0.0; HIDDEN]);
    let with = |values: &[f32], at: usize, value: f32| {
        let mut values = values.to_vec();
        values[at] = value;
        values
    };
    let errors = [
        model.set_weight("pooler", weight.clone(), None),
        model.set_weight(layer, weight[1..].to_vec(), None),
        model.set_weight(layer, weight.clone(), Some(weight.clone())),
        model.set_weight(layer, with(&weight, 5, f32::NAN), None),
        model.set_bias(layer, with(&hidden, 3, f32::INFINITY)),
        model.set_norm("pooler", hidden.clone(), hidden.clone()),
        model.set_norm(norm, vec![], hidden.clone()),
        model.set_norm(norm, hidden.clone(), with(&hidden, 1, f32::NAN)),
    ];
    let texts = errors.map(|error| error_of(error).to_string());
    assert!(texts[0].starts_with("no linear layer is named `pooler`; the names are encoder.layer.0."));
    assert!(texts[5].starts_with("no LayerNorm is named `pooler`; the names are embeddings.LayerNorm, encoder."));
    assert_eq!(texts[1], format!("parameter `{layer}.weight`: expected 2304 values, found 2303"));
    assert_eq!(texts[2], format!("parameter `{layer}.bias`: expected 32 values, found 2304"));
    assert_eq!(texts[3], format!("parameter `{layer}.weight`: value 5 is NaN; expected finite numbers"));
    assert_eq!(texts[4], format!("parameter `{layer}.bias`: value 3 is inf; expected finite numbers"));
    assert_eq!(texts[6], format!("parameter `{norm}.weight`: expected 32 values, found 0"));
    assert_eq!(texts[7], format!("parameter `{norm}.bias`: value 1 is NaN; expected finite numbers"));
    assert!(model.bias("pooler").is_err() && model.norm("pooler").is_err());
    assert_eq!(model.embed(&batch()).unwrap(), dense.embed(&batch()).unwrap());
}
