//! On a GPU: launches, graphs, streams, memory, and errors. Skipped without one.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fractal_runtime::cuda::testing::device_or_skip;
use fractal_runtime::cuda::{
    Arch, Arg, Buffer, CubinCache, CudaDevice, CudaError, Element, Kernel, LaunchShape, Options, Origin, Source,
    Stream, Swizzle, TensorMap,
};

const TEXT: &str = r#"
extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

// May be launched while the kernel before it drains.
extern "C" __global__ void axpy_overlapped(float a, const float* x, float* y, int n) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

// Keeps the GPU busy for a number of clock cycles.
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}

// Reverses up to 50000 floats through dynamic shared memory.
extern "C" __global__ void reverse(float* x, int n) {
    extern __shared__ float stage[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) stage[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = stage[n - 1 - i];
}

struct Plan { int add; int times; };
extern "C" __global__ void by_value(Plan plan, int* x) { *x = *x * plan.times + plan.add; }

extern "C" __global__ void fault(int* x) { x[1ll << 40] = 1; }
"#;

/// A quarter of a second or so.
const LONG: Arg = Arg::I64(400_000_000);

/// The first GPU, for one test at a time: some of them keep it busy, and some take the time.
fn alone() -> Option<(CudaDevice, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some((device_or_skip()?, alone))
}

fn load(device: &CudaDevice, name: &str) -> Kernel {
    device.kernel(&Source::new("device_tests", TEXT), name, &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// One launch of `axpy`, which stays within its first `n` elements.
fn axpy(kernel: &Kernel, stream: &Stream, a: f32, x: &Buffer, y: &Buffer, n: usize) -> Result<(), CudaError> {
    assert!(x.bytes().min(y.bytes()) >= n * 4);
    let arguments = [Arg::F32(a), Arg::Buffer(x), Arg::Buffer(y), Arg::I32(n as i32)];
    // SAFETY: the kernel touches the first n floats of both buffers, which are there.
    unsafe { kernel.launch(stream, &LaunchShape::linear(n as u32, 256), &arguments) }
}

fn spin(kernel: &Kernel, stream: &Stream) {
    // SAFETY: the kernel touches no memory.
    unsafe { kernel.launch(stream, &LaunchShape::linear(1, 1), &[LONG]) }.unwrap();
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 97) as f32 - 40.0).collect()
}

#[test]
fn axpy_is_launched_captured_and_replayed() {
    let Some((device, _alone)) = alone() else { return };
    println!("{:?}", device.info());
    let kernel = load(&device, "axpy");
    assert_eq!(kernel.info().parameters, [4, 8, 8, 4]);
    let stream = device.stream().unwrap();
    for n in [1, 255, 256, 100_003] {
        let x = stream.upload(&ramp(n)).unwrap();
        let y = stream.upload(&vec![1.0f32; n]).unwrap();
        axpy(&kernel, &stream, 2.0, &x, &y, n).unwrap();
        let expected = |times: f32| -> Vec<f32> { ramp(n).iter().map(|v| 1.0 + times * 2.0 * v).collect() };
        assert_eq!(stream.download::<f32>(&y).unwrap(), expected(1.0));

        let graph = stream
            .capture(|stream| {
                axpy(&kernel, stream, 2.0, &x, &y, n)?;
                axpy(&kernel, stream, 2.0, &x, &y, n)
            })
            .unwrap();
        assert_eq!(stream.download::<f32>(&y).unwrap(), expected(1.0), "a capture does not run");
        graph.replay().unwrap();
        graph.replay().unwrap();
        assert_eq!(stream.download::<f32>(&y).unwrap(), expected(5.0));
        let other = device.stream().unwrap();
        stream.synchronize().unwrap();
        graph.replay_on(&other).unwrap();
        assert_eq!(other.download::<f32>(&y).unwrap(), expected(7.0));
    }
}

#[test]
fn overlapped_launches_stay_in_order() {
    let Some((device, _alone)) = alone() else { return };
    if !device.info().arch.has(Arch { specific: false, ..Arch::HOPPER }) {
        println!("[SKIP] {} has no dependent launches", device.info().name);
        return;
    }
    let kernel = load(&device, "axpy_overlapped");
    let stream = device.stream().unwrap();
    let n = 1 << 20;
    let x = stream.upload(&vec![1.0f32; n]).unwrap();
    let y = stream.zeros(n * 4).unwrap();
    let shape = LaunchShape { overlap: true, ..LaunchShape::linear(n as u32, 256) };
    let chain = |stream: &Stream| {
        // y += x; x += y, again and again: Fibonacci's numbers, if each launch sees all of the one before.
        (0..10).try_for_each(|round| {
            let (from, to) = if round % 2 == 0 { (&x, &y) } else { (&y, &x) };
            let arguments = [Arg::F32(1.0), Arg::Buffer(from), Arg::Buffer(to), Arg::I32(n as i32)];
            // SAFETY: the kernel touches the first n floats of both buffers, which are there.
            unsafe { kernel.launch(stream, &shape, &arguments) }
        })
    };
    chain(&stream).unwrap();
    assert_eq!(stream.download::<f32>(&y).unwrap(), vec![55.0f32; n]);
    assert_eq!(stream.download::<f32>(&x).unwrap(), vec![89.0f32; n]);
    stream.capture(chain).unwrap().replay().unwrap();
    assert_eq!(stream.download::<f32>(&y).unwrap(), vec![6765.0f32; n]);
}

#[test]
fn nothing_in_a_call_makes_the_host_wait() {
    let Some((device, _alone)) = alone() else { return };
    let (axpy_kernel, spin_kernel) = (load(&device, "axpy"), load(&device, "spin"));
    let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
    let n = 1 << 16;
    let (x, y) = (stream.upload(&ramp(n)).unwrap(), stream.zeros(n * 4).unwrap());
    let graph = stream.capture(|stream| axpy(&axpy_kernel, stream, 1.0, &x, &y, n)).unwrap();
    // Everything once, so that nothing is loaded or grown below.
    graph.replay().unwrap();
    axpy(&axpy_kernel, &other, 0.0, &x, &y, n).unwrap();
    drop(stream.zeros(n * 4).unwrap());
    spin(&spin_kernel, &stream);
    device.synchronize().unwrap();

    let start = Instant::now();
    spin(&spin_kernel, &stream);
    let busy = stream.record().unwrap();
    axpy(&axpy_kernel, &stream, 1.0, &x, &y, n).unwrap();
    graph.replay().unwrap();
    let scratch = stream.zeros(n * 4).unwrap();
    stream.copy(&y, &scratch, n * 4).unwrap();
    other.wait(&stream.record().unwrap()).unwrap();
    axpy(&axpy_kernel, &other, 1.0, &scratch, &y, n).unwrap();
    drop(scratch);
    let put = start.elapsed();
    assert!(!busy.is_complete().unwrap(), "a call waited: {put:?} until the last one returned");
    assert!(put < Duration::from_millis(100), "{put:?}");

    // y = x (the first replay), + x + x, and then twice its own value.
    let expected: Vec<f32> = ramp(n).iter().map(|v| 6.0 * v).collect();
    assert_eq!(other.download::<f32>(&y).unwrap(), expected);
}

#[test]
fn a_dropped_buffer_lives_until_every_stream_is_done_with_it() {
    let Some((device, _alone)) = alone() else { return };
    let (axpy_kernel, spin_kernel) = (load(&device, "axpy"), load(&device, "spin"));
    let (home, other) = (device.stream().unwrap(), device.stream().unwrap());
    let n = 1 << 20;
    let y = other.zeros(n * 4).unwrap();
    for round in 1..=4 {
        let x = home.upload(&vec![round as f32; n]).unwrap();
        spin(&spin_kernel, &other);
        axpy(&axpy_kernel, &other, 1.0, &x, &y, n).unwrap();
        drop(x);
        // Would take x's memory if it were free too early.
        let thief = home.upload(&vec![1e9f32; n]).unwrap();
        let expected = (1..=round).sum::<i32>() as f32;
        assert!(other.download::<f32>(&y).unwrap().iter().all(|&v| v == expected));
        drop(thief);
    }
}

#[test]
fn a_graph_keeps_its_buffers_and_captures_may_allocate() {
    let Some((device, _alone)) = alone() else { return };
    let kernel = load(&device, "axpy");
    let stream = device.stream().unwrap();
    let n = 4096;
    let y = stream.zeros(n * 4).unwrap();
    let unrelated = stream.zeros(64).unwrap();
    let graph = {
        let x = stream.upload(&ramp(n)).unwrap();
        stream
            .capture(|stream| {
                drop(unrelated);
                let inner = stream.zeros(n * 4)?;
                axpy(&kernel, stream, 1.0, &x, &inner, n)?;
                axpy(&kernel, stream, 1.0, &inner, &y, n)
            })
            .unwrap()
    };
    let thief = stream.upload(&vec![1e9f32; n]).unwrap();
    for times in 1..=3 {
        graph.replay().unwrap();
        let expected: Vec<f32> = ramp(n).iter().map(|v| times as f32 * v).collect();
        assert_eq!(stream.download::<f32>(&y).unwrap(), expected);
    }
    assert_eq!(stream.download::<f32>(&thief).unwrap(), vec![1e9f32; n]);
}

#[test]
fn what_cannot_be_captured_is_an_error_and_the_stream_goes_on() {
    let Some((device, _alone)) = alone() else { return };
    let kernel = load(&device, "axpy");
    let stream = device.stream().unwrap();
    let x = stream.upload(&[1.0f32; 8]).unwrap();
    type Attempt<'a> = &'a dyn Fn(&Stream) -> Result<(), CudaError>;
    let attempts: [Attempt; 4] = [
        &|stream| stream.synchronize(),
        &|stream| stream.upload(&[1.0f32]).map(drop),
        &|stream| stream.download::<f32>(&x).map(drop),
        &|stream| stream.capture(|_| Ok(())).map(drop),
    ];
    for attempt in attempts {
        let error = stream.capture(attempt).unwrap_err();
        assert!(matches!(error, CudaError::Capture { .. }), "{error}");
    }
    // Nothing is captured as well as something.
    stream.capture(|_| Ok(())).unwrap().replay().unwrap();
    let panics = std::panic::AssertUnwindSafe(|| stream.capture(|_| panic!("inside a capture")));
    assert!(std::panic::catch_unwind(panics).is_err());
    let y = stream.upload(&[2.0f32; 8]).unwrap();
    axpy(&kernel, &stream, 3.0, &x, &y, 8).unwrap();
    assert_eq!(stream.download::<f32>(&y).unwrap(), [5.0; 8]);
}

#[test]
fn a_block_may_use_all_of_the_shared_memory() {
    let Some((device, _alone)) = alone() else { return };
    let kernel = load(&device, "reverse");
    let stream = device.stream().unwrap();
    let n = device.info().shared_per_block as usize / 4;
    let x = stream.upload(&ramp(n)).unwrap();
    let mut shape = LaunchShape { shared: n as u32 * 4, ..LaunchShape::linear(256, 256) };
    assert_eq!(kernel.blocks_per_sm(&shape).unwrap(), 1);
    // SAFETY: x has n floats.
    unsafe { kernel.launch(&stream, &shape, &[Arg::Buffer(&x), Arg::I32(n as i32)]) }.unwrap();
    let reversed: Vec<f32> = ramp(n).into_iter().rev().collect();
    assert_eq!(stream.download::<f32>(&x).unwrap(), reversed);

    shape.shared += 16;
    // SAFETY: as above.
    let error = unsafe { kernel.launch(&stream, &shape, &[Arg::Buffer(&x), Arg::I32(n as i32)]) }.unwrap_err();
    assert!(
        matches!(&error, CudaError::Launch { kernel, shared, .. } if kernel == "reverse" && *shared == shape.shared)
    );
}

#[test]
fn arguments_are_checked_and_passed_by_value() {
    let Some((device, _alone)) = alone() else { return };
    let kernel = load(&device, "by_value");
    let stream = device.stream().unwrap();
    let x = stream.upload(&[0i32, 5]).unwrap();
    let shape = LaunchShape::linear(1, 1);
    let plan: Vec<u8> = [7i32, 10].iter().flat_map(|v| v.to_le_bytes()).collect();
    // SAFETY: the kernel touches one int, the second.
    unsafe { kernel.launch(&stream, &shape, &[Arg::Bytes(&plan), Arg::BufferAt(&x, 4)]) }.unwrap();
    assert_eq!(stream.download::<i32>(&x).unwrap(), [0, 57]);

    let wrong: [&[Arg]; 3] = [&[Arg::Buffer(&x)], &[Arg::I32(1), Arg::Buffer(&x)], &[Arg::Buffer(&x); 3]];
    for arguments in wrong {
        // SAFETY: nothing is launched.
        let error = unsafe { kernel.launch(&stream, &shape, arguments) }.unwrap_err();
        assert!(matches!(&error, CudaError::Arguments { expected, .. } if *expected == [8, 8]), "{error}");
    }
    let none = LaunchShape { grid: [0, 1, 1], ..shape };
    // SAFETY: a grid without blocks does nothing.
    unsafe { kernel.launch(&stream, &none, &[Arg::Bytes(&plan), Arg::Buffer(&x)]) }.unwrap();
    let huge = LaunchShape { block: [4096, 1, 1], ..shape };
    // SAFETY: the driver refuses the shape.
    let error = unsafe { kernel.launch(&stream, &huge, &[Arg::Bytes(&plan), Arg::Buffer(&x)]) }.unwrap_err();
    assert!(matches!(&error, CudaError::Launch { block, .. } if block[0] == 4096), "{error}");
    assert_eq!(stream.download::<i32>(&x).unwrap(), [0, 57]);
}

#[test]
fn memory_errors_are_told_and_the_gpu_goes_on() {
    let Some((device, _alone)) = alone() else { return };
    let stream = device.stream().unwrap();
    let error = stream.alloc(1 << 50).unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory { requested, free, .. } if requested == 1 << 50 && free > 0));
    let buffer = stream.upload(&[1u8, 2, 3]).unwrap();
    assert!(matches!(stream.write(&buffer, &[0u8; 4]).unwrap_err(), CudaError::Size { expected: 3, found: 4, .. }));
    assert!(matches!(stream.copy(&buffer, &buffer, 4).unwrap_err(), CudaError::Size { .. }));
    assert_eq!(stream.download::<u16>(&buffer).unwrap(), [0x0201]);
    let empty = stream.upload::<f32>(&[]).unwrap();
    stream.zero(&empty).unwrap();
    assert_eq!(stream.download::<f32>(&empty).unwrap(), [0.0f32; 0]);
}

#[test]
fn kernels_come_from_the_cache_and_are_loaded_once() {
    let Some((_, _alone)) = alone() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = Source::new("device_tests", TEXT);
    let open = || CudaDevice::open_with_cache(0, CubinCache::at(folder.path())).unwrap();
    let device = open();
    assert_eq!(device.compile(&source, &Options::default()).unwrap().1, Origin::Compiled);
    drop(device);
    let device = open();
    let (cubin, origin) = device.compile(&source, &Options::default()).unwrap();
    assert_eq!(origin, Origin::Cached);
    let kernel = device.load(&cubin, "axpy").unwrap();
    let error = device.load(&cubin, "axpi").unwrap_err();
    assert!(matches!(&error, CudaError::NoKernel { present, .. } if present.len() == 6), "{error}");
    let stream = device.stream().unwrap();
    let (x, y) = (stream.upload(&[1.0f32; 4]).unwrap(), stream.zeros(16).unwrap());
    drop(device);
    axpy(&kernel, &stream, 1.0, &x, &y, 4).unwrap();
    drop(kernel);
    assert_eq!(stream.download::<f32>(&y).unwrap(), [1.0; 4]);
}

#[test]
fn threads_share_a_device() {
    let Some((device, _alone)) = alone() else { return };
    let weights = device.stream().unwrap().upload(&ramp(10_000)).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let (device, weights) = (&device, &weights);
            scope.spawn(move || {
                let kernel = load(device, "axpy");
                let stream = device.stream().unwrap();
                let y = stream.zeros(weights.bytes()).unwrap();
                for _ in 0..100 {
                    axpy(&kernel, &stream, thread as f32, weights, &y, 10_000).unwrap();
                }
                let expected: Vec<f32> = ramp(10_000).iter().map(|v| 100.0 * thread as f32 * v).collect();
                assert_eq!(stream.download::<f32>(&y).unwrap(), expected);
            });
        }
    });
}

#[test]
fn each_gpu_has_its_own_kernels_and_buffers() {
    let Some((_, _alone)) = alone() else { return };
    let devices: Vec<_> = (0..CudaDevice::count().unwrap()).map(|index| CudaDevice::open(index).unwrap()).collect();
    for device in &devices {
        let stream = device.stream().unwrap();
        let (x, y) = (stream.upload(&[2.0f32; 64]).unwrap(), stream.zeros(256).unwrap());
        axpy(&load(device, "axpy"), &stream, 4.0, &x, &y, 64).unwrap();
        assert_eq!(stream.download::<f32>(&y).unwrap(), [8.0; 64]);
    }
    let [first, second, ..] = &devices[..] else {
        println!("[SKIP] one GPU only: nothing to mix up");
        return;
    };
    let stream = first.stream().unwrap();
    let foreign = second.stream().unwrap().upload(&[0.0f32; 64]).unwrap();
    let error = axpy(&load(first, "axpy"), &stream, 1.0, &foreign, &foreign, 64).unwrap_err();
    assert_eq!(error, CudaError::OtherDevice { what: "buffer", expected: 0, found: 1 });
    let home = stream.upload(&[0.0f32; 64]).unwrap();
    let error = axpy(&load(second, "axpy"), &stream, 1.0, &home, &home, 64).unwrap_err();
    assert_eq!(error, CudaError::OtherDevice { what: "kernel", expected: 0, found: 1 });
}

#[test]
fn an_architecture_that_the_gpu_lacks_is_refused() {
    let Some((device, _alone)) = alone() else { return };
    let arch = device.info().arch;
    device.require(Arch { specific: false, ..arch }, "mma_sync").unwrap();
    let error = device.require(Arch { major: 99, minor: 0, specific: true }, "wgmma").unwrap_err();
    let CudaError::ArchTooLow { found, offer, .. } = &error else { panic!("{error}") };
    assert_eq!((*found, *offer), (arch, "ffma"));
}

#[test]
fn tensor_maps_are_checked_and_encoded() {
    let Some((device, _alone)) = alone() else { return };
    if !device.info().arch.has(Arch { specific: false, ..Arch::HOPPER }) {
        println!("[SKIP] {} has no tensor maps", device.info().name);
        return;
    }
    let stream = device.stream().unwrap();
    let buffer = stream.zeros(256 * 128 * 2).unwrap();
    let map =
        |rows, box_rows| TensorMap::matrix(&buffer, Element::Bf16, [rows, 128], 128, [box_rows, 64], Swizzle::B128);
    map(256, 64).unwrap();
    assert!(matches!(map(257, 64).unwrap_err(), CudaError::Size { .. }));
    assert!(matches!(map(256, 257).unwrap_err(), CudaError::Driver { .. }));
}

#[test]
fn time_is_taken_on_the_gpu() {
    let Some((device, _alone)) = alone() else { return };
    let kernel = load(&device, "spin");
    let stream = device.stream().unwrap();
    spin(&kernel, &stream);
    let run = || {
        spin(&kernel, &stream);
        Ok(())
    };
    let milliseconds = stream.time(2, run).unwrap();
    assert!((50.0..2000.0).contains(&milliseconds), "{milliseconds}");
}

/// A fault spoils the context for the whole process, so it happens in a child.
#[test]
fn a_fault_of_a_kernel_is_an_error_of_what_waits_for_it() {
    let Some((_, _alone)) = alone() else { return };
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_with_a_fault", "--nocapture"])
        .env("FRACTAL_TEST_CHILD", "1")
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn child_with_a_fault() {
    if std::env::var_os("FRACTAL_TEST_CHILD").is_none() {
        return;
    }
    let Some((device, _alone)) = alone() else { return };
    let kernel = load(&device, "fault");
    let stream = device.stream().unwrap();
    let x = stream.zeros(4).unwrap();
    // SAFETY: the kernel writes where nothing is mapped, which the GPU reports; no memory of anyone is changed.
    unsafe { kernel.launch(&stream, &LaunchShape::linear(1, 1), &[Arg::Buffer(&x)]) }.unwrap();
    let error = stream.synchronize().unwrap_err();
    let CudaError::Driver { code, .. } = &error else { panic!("{error}") };
    assert_eq!(code, "CUDA_ERROR_ILLEGAL_ADDRESS");
}
