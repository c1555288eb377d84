//! Values -> text for the page: escaped, with as many digits as tell something.

/// Text as it stands in an element or a quoted attribute. What XML forbids is replaced.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A time without its unit: three digits, or all before the point.
pub fn microseconds(time: f64) -> String {
    let decimals = match time.abs() {
        t if t >= 100.0 => 0,
        t if t >= 10.0 => 1,
        _ => 2,
    };
    format!("{time:.decimals$}")
}

/// A part as a percentage, without the sign.
pub fn percent(part: f64) -> String {
    format!("{:.2}", part * 100.0)
}

/// The same, without zeros that tell nothing.
pub fn short_percent(part: f64) -> String {
    trimmed(percent(part))
}

/// Without zeros at the end of a fraction.
pub fn trimmed(number: String) -> String {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.').to_string()
}
