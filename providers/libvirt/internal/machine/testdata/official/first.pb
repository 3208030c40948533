
$8a4b7c1e-5a3d-4a0e-9d43-2f0c6b1e7a55@376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4baRworkers-x7k2p9.qcow2¢defaultªworkers-x7k2p9