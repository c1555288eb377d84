//! The `sparse_gemm!` macro: a thin shim over the parser and checker of `fractal-dsl`.

use fractal_dsl::ast::{Ast, Name};
use fractal_dsl::lens::{self, Obligation};
use fractal_dsl::{Dim, Dimension, MacroInput, Program, Report, from_tokens};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};

/// A sparse GEMM: what it computes, which weights it keeps, and how it is scheduled.
///
/// The item form makes a type, the expression form a value of type `Program`:
///
/// ```ignore
/// sparse_gemm! {
///     /// Up-projection of a BERT-large FFN.
///     pub gemm FfnUp<M, N = 4096, K = 1024> {
///         weight w: bf16[N, K];
///         input  x: bf16[K, M];
///         output y: bf16[N, M];
///         y[n, m] += w[n, k] * x[k, m];
///         y = gelu(y + bias[n]);
///         schedule {
///             let (no, ni) = split(n, 128);
///             skip(k, per = no, keep = 50%);
///         }
///     }
/// }
/// let same_without_a_name = sparse_gemm! { <M, N = 4096, K = 1024> /* … the same statements … */ };
/// ```
///
/// A dimension is run-time (`M`), a number, or a constant expression (`N = HIDDEN`, `N = { 4 * HIDDEN }`). Everything
/// that is wrong is reported at once, each error at its token. The macro reads no file, device or network.
#[proc_macro]
pub fn sparse_gemm(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let MacroInput { ast, program, errors } = from_tokens(input.into());
    let expansion = match (ast, program) {
        (Some(ast), Some(program)) => match &ast.name {
            Some(name) => item(&ast, name, &program),
            None => expression(&ast, &program),
        },
        (ast, _) => failed(ast, &errors.into_reports()),
    };
    expansion.into()
}

/// The path of the facade crate, through which expansions name everything.
fn facade() -> TokenStream {
    quote!(::fractal)
}

/// A unit struct with the program.
fn item(ast: &Ast, name: &Name, program: &Program) -> TokenStream {
    let fractal = facade();
    let (vis, ident, text) = (&ast.vis, ident(name), program.to_string());
    let docs = if ast.docs.is_empty() { vec![format!("The sparse GEMM `{ident}`.")] } else { ast.docs.clone() };
    let docs = docs.iter().map(|line| format!(" {line}"));
    let constants = constants(ast, program);
    let (bindings, asserts) = (bindings(&constants), asserts(ast, program, &constants));
    quote! {
        #(#[doc = #docs])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #vis struct #ident;

        impl #ident {
            /// The program as canonical DSL text.
            pub const TEXT: &'static str = #text;

            /// The checked program.
            pub fn program() -> &'static #fractal::Program {
                static PROGRAM: ::std::sync::OnceLock<#fractal::Program> = ::std::sync::OnceLock::new();
                PROGRAM.get_or_init(|| #fractal::__private::expanded(Self::TEXT, #bindings))
            }
        }

        impl #fractal::__private::SparseGemm for #ident {
            fn program() -> &'static #fractal::Program {
                #ident::program()
            }
        }

        #asserts
    }
}

/// An expression of type `Program`.
fn expression(ast: &Ast, program: &Program) -> TokenStream {
    let fractal = facade();
    let text = program.to_string();
    let constants = constants(ast, program);
    let (bindings, asserts) = (bindings(&constants), asserts(ast, program, &constants));
    quote! {{
        #asserts
        #fractal::__private::expanded(#text, #bindings)
    }}
}

/// Every error at its tokens, and beside them what keeps uses of the name from being errors too.
fn failed(ast: Option<Ast>, reports: &[Report]) -> TokenStream {
    let fractal = facade();
    let errors: TokenStream = reports.iter().map(compile_error).collect();
    match ast {
        None => errors,
        Some(Ast { name: None, .. }) => quote! {{
            #errors
            fn program() -> #fractal::Program {
                ::core::unreachable!()
            }
            program()
        }},
        Some(Ast { name: Some(name), vis, .. }) => {
            let ident = ident(&name);
            quote! {
                #errors
                #[allow(missing_docs, dead_code)]
                #vis struct #ident;
                #[allow(missing_docs, dead_code)]
                impl #ident {
                    pub const TEXT: &'static str = "";
                    pub fn program() -> &'static #fractal::Program {
                        ::core::unreachable!()
                    }
                }
                impl #fractal::__private::SparseGemm for #ident {
                    fn program() -> &'static #fractal::Program {
                        ::core::unreachable!()
                    }
                }
            }
        }
    }
}

/// The compiler underlines from the first to the last token of the macro call that it is told to report.
fn compile_error(report: &Report) -> TokenStream {
    let message = report.diagnostic.to_string();
    let path = quote_spanned!(report.at.start=> ::core::compile_error!);
    let body = quote_spanned!(report.at.end=> { #message });
    quote!(#path #body)
}

fn ident(name: &Name) -> Ident {
    match name.text.strip_prefix("r#") {
        Some(raw) => Ident::new_raw(raw, name.at.start),
        None => Ident::new(&name.text, name.at.start),
    }
}

/// The dimensions that are constant expressions, with these.
fn constants<'a>(ast: &'a Ast, program: &Program) -> Vec<(Dimension, &'a TokenStream)> {
    let is_const = |dimension: &Dimension| matches!(program.dim(*dimension), Dim::Const(_));
    let tokens = |dimension: Dimension| Some((dimension, dimension.const_tokens(ast)?));
    Dimension::ALL.into_iter().filter(is_const).filter_map(tokens).collect()
}

/// `&[("N", (4 * HIDDEN) as usize)]`
fn bindings(constants: &[(Dimension, &TokenStream)]) -> TokenStream {
    let pairs = constants.iter().map(|(dimension, tokens)| {
        let name = dimension.name();
        quote! { (#name, { #[allow(clippy::unnecessary_cast, unused_parens)] const SIZE: usize = (#tokens) as usize; SIZE }) }
    });
    quote!(&[#(#pairs),*])
}

/// What the compiler can see of constant dimensions: their range, and what the schedule asks of them.
fn asserts(ast: &Ast, program: &Program, constants: &[(Dimension, &TokenStream)]) -> TokenStream {
    let Some((_, first)) = constants.first() else { return TokenStream::new() };
    let fractal = facade();
    let name = |dimension: &Dimension| lens::dimension_name(*dimension);
    let sizes = constants.iter().map(|(dimension, tokens)| {
        let name = name(dimension);
        quote!(const #name: usize = (#tokens) as usize;)
    });
    let ranges = constants.iter().map(|(dimension, tokens)| {
        let name = name(dimension);
        let message = format!("dimension `{dimension}` of a sparse_gemm: expected a size from 1 to 2^31 - 1");
        quote_spanned!(span(tokens)=> const _: () = ::core::assert!(#name >= 1 && #name < 1 << 31, #message);)
    });
    let elements = |dimension: Dimension| match program.dim(dimension) {
        Dim::Runtime => None,
        Dim::Fixed(size) => Some(quote!(#size as u128)),
        Dim::Const(_) => Some(name(&dimension)).map(|name| quote!(#name as u128)),
    };
    let product = elements(Dimension::N).zip(elements(Dimension::K)).map(|(n, k)| {
        let message =
            "the weight of a sparse_gemm has too many elements: expected N * K of at most 2^40; shard the layer";
        quote_spanned!(span(first)=> const _: () = ::core::assert!(#n * #k <= 1 << 40, #message);)
    });
    let schedule = lens::obligations(ast, program).into_iter().map(|Obligation { at, condition, message }| {
        quote_spanned!(at.start=> const _: () = ::core::assert!(#condition, #message);)
    });
    quote! {
        #[allow(clippy::unnecessary_cast, clippy::identity_op, unused_parens, unused_imports)]
        const _: () = {
            use #fractal::__private::lens;
            #(#sizes)*
            #(#ranges)*
            #product
            #(#schedule)*
        };
    }
}

fn span(tokens: &TokenStream) -> Span {
    tokens.clone().into_iter().next().map_or_else(Span::call_site, |tree| tree.span())
}
