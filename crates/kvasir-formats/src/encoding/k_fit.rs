//! Scale search for K-quants: weighted least squares over a few candidate scales per group.
//!
//! The summation order is part of the format's definition; changing it changes published files.

/// Groups with a maximum magnitude below this are quantized to zero.
const TINY: f32 = 1e-15;

/// Rounds half to even, by adding 1.5 × 2^23 so that the mantissa holds the integer.
pub(super) fn nearest(v: f32) -> i32 {
    let bits = (v + 12_582_912.0).to_bits();
    (bits & 0x007f_ffff) as i32 - 0x0040_0000
}

/// The value of largest magnitude, or `None` if all are below `TINY`.
fn extreme(x: &[f32]) -> Option<f32> {
    let (mut size, mut value) = (0.0, 0.0);
    for &v in x {
        if v.abs() > size {
            (size, value) = (v.abs(), v);
        }
    }
    (size >= TINY).then_some(value)
}

/// Scale for signed codes −`n` ..= `n` − 1, weighted by v² (Q6_K). Codes are stored with offset
/// `n`.
pub(super) fn symmetric(n: i32, x: &[f32; 16], codes: &mut [u8]) -> f32 {
    let Some(max) = extreme(x) else {
        codes.fill(0);
        return 0.0;
    };
    let code = |inverse: f32, v: f32| nearest(inverse * v).clamp(-n, n - 1);
    let sums = |inverse: f32| {
        let (mut lx, mut l2) = (0.0f32, 0.0f32);
        for &v in x {
            let (l, w) = (code(inverse, v) as f32, v * v);
            lx += w * v * l;
            l2 += w * l * l;
        }
        (lx, l2)
    };
    let mut inverse = -(n as f32) / max;
    let (lx, l2) = sums(inverse);
    let mut scale = if l2 == 0.0 { 0.0 } else { lx / l2 };
    let mut best = scale * lx;
    for step in (-9..=9).filter(|&s| s != 0) {
        let candidate = -(n as f32 + 0.1 * step as f32) / max;
        let (lx, l2) = sums(candidate);
        if l2 > 0.0 && lx * lx > best * l2 {
            inverse = candidate;
            scale = lx / l2;
            best = scale * lx;
        }
    }
    for (c, &v) in codes.iter_mut().zip(x) {
        *c = (code(inverse, v) + n) as u8;
    }
    scale
}

/// Scale for codes −4 ..= 3 by coordinate descent, one code at a time (Q3_K). Codes are stored with
/// offset 4.
pub(super) fn one_by_one(x: &[f32; 16], codes: &mut [u8]) -> f32 {
    const N: i32 = 4;
    let Some(max) = extreme(x) else {
        codes.fill(0);
        return 0.0;
    };
    let inverse = -(N as f32) / max;
    let mut fit = x.map(|v| nearest(inverse * v).clamp(-N, N - 1));
    let (mut lx, mut l2) = (0.0f32, 0.0f32);
    for (&v, &l) in x.iter().zip(&fit) {
        let (l, w) = (l as f32, v * v);
        lx += w * v * l;
        l2 += w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&v, l) in x.iter().zip(&mut fit) {
            let (w, old) = (v * v, *l as f32);
            let mut without_lx = lx - w * v * old;
            if without_lx <= 0.0 {
                continue;
            }
            let mut without_l2 = l2 - w * old * old;
            let new = nearest(v * without_l2 / without_lx).clamp(-N, N - 1);
            if new == *l {
                continue;
            }
            without_lx += w * v * new as f32;
            without_l2 += w * new as f32 * new as f32;
            if without_l2 > 0.0 && without_lx * without_lx * l2 > lx * lx * without_l2 {
                (*l, lx, l2) = (new, without_lx, without_l2);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for (c, l) in codes.iter_mut().zip(fit) {
        *c = (l + N) as u8;
    }
    if l2 > 0.0 { lx / l2 } else { 0.0 }
}

/// Candidate scales of [`affine`], and its error metric (absolute or squared).
#[derive(Clone, Copy)]
pub(super) struct Search {
    pub(super) max_code: i32,
    pub(super) first: f32,
    pub(super) steps: u8,
    pub(super) absolute: bool,
}

/// Scale and min (subtracted, non-negative) for codes 0 ..= `max_code`.
pub(super) fn affine(x: &[f32], weights: &[f32], search: Search, codes: &mut [u8]) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for (&v, &w) in x.iter().zip(weights).skip(1) {
        min = if v < min { v } else { min };
        max = if v > max { v } else { max };
        sum_w += w;
        sum_x += w * v;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        codes.fill(0);
        return (0.0, -min);
    }
    let n = search.max_code;
    let code = |inverse: f32, low: f32, v: f32| nearest(inverse * (v - low)).clamp(0, n);
    let error = |inverse: f32, low: f32, scale: f32, min: f32| {
        let mut sum = 0.0f32;
        for (&v, &w) in x.iter().zip(weights) {
            let diff = scale * code(inverse, low, v) as f32 + min - v;
            sum += w * if search.absolute { diff.abs() } else { diff * diff };
        }
        sum
    };
    // The best codes so far are given by this inverse scale and lowest value. An improved fit
    // changes `min`, from which the later candidates are computed.
    let (mut inverse, mut low) = (n as f32 / (max - min), min);
    let mut scale = 1.0 / inverse;
    let mut best = error(inverse, low, scale, min);
    for step in 0..=search.steps {
        let candidate = (search.first + 0.1 * f32::from(step) + n as f32) / (max - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for (&v, &w) in x.iter().zip(weights) {
            let l = code(candidate, min, v) as f32;
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * v;
        }
        let d = sum_w * sum_l2 - sum_l * sum_l;
        if d <= 0.0 {
            continue;
        }
        let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / d;
        let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / d;
        if this_min > 0.0 {
            this_min = 0.0;
            this_scale = sum_xl / sum_l2;
        }
        let this = error(candidate, min, this_scale, this_min);
        if this < best {
            (best, inverse, low, scale) = (this, candidate, min, this_scale);
            min = this_min;
        }
    }
    for (c, &v) in codes.iter_mut().zip(x) {
        *c = code(inverse, low, v) as u8;
    }
    (scale, -min)
}
