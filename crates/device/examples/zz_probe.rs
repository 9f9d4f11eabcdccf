use forebay_device::*; use forebay_core::*; use std::sync::Arc; use std::time::Instant;
struct S; impl Clock for S { fn now(&self)->Nanos{Nanos(0)} }
fn main(){
 let d=RamDevice::new("r",64<<20).unwrap(); let q=Queue::new(d.open_queue(&QueueContext{clock:Arc::new(S),ring:None}).unwrap());
 let mut b=IoBuf::zeroed(4096); for o in (0..64u64<<20).step_by(4096){ q.read_now(o,&mut b).unwrap().unwrap(); }
 let src=vec![1u8;64<<20]; let mut x=1u64; let n=2_000_000;
 for _ in 0..3 {
 let t=Instant::now(); for _ in 0..n { x=x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); let o=((x>>33)%16384*4096) as usize; b.copy_from_slice(&src[o..o+4096]); std::hint::black_box(&mut b);} let a=t.elapsed();
 let t=Instant::now(); for _ in 0..n { x=x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); let o=(x>>33)%16384*4096; q.read_now(o,&mut b).unwrap().unwrap(); std::hint::black_box(&mut b);} let c=t.elapsed();
 let t=Instant::now(); for _ in 0..n { std::hint::black_box(IoBuf::for_overwrite(4096)); } let e=t.elapsed();
 let mut l=LogBuffer::new(64<<20);
 let t=Instant::now(); for i in 0..16384usize { let cl=l.claim(i*4096..i*4096+4096).unwrap(); cl.publish(); } let f=t.elapsed();
 let t=Instant::now(); for i in 0..16384usize { std::hint::black_box(l.get(i*4096..i*4096+4096).unwrap()); } let g=t.elapsed();
 Arc::get_mut(&mut l).unwrap().reset();
 println!("memcpy {:?} read_now {:?} iobuf {:?} claim+publish {:?} get {:?}", a/n, c/n, e/n, f/16384, g/16384);
 }}
