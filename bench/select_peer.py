"""The peer of `cairn bench select`: k-means and exact search by faiss-cpu on the same vectors, with the same start and threads.

Prints one JSON object, and writes the neighbours as `ids` (int64) and `scores` (float32).
"""
import json
import sys
import time

import faiss
import numpy

settings = json.loads(sys.argv[1])
faiss.omp_set_num_threads(settings["threads"])
folder, width = settings["folder"], settings["width"]


def read(name):
    return numpy.fromfile(folder + "/" + name, dtype=numpy.float32).reshape(-1, width)


rows, queries, start = read("rows"), read("queries"), read("start")
k_means = faiss.Kmeans(width, settings["clusters"], niter=settings["iterations"], max_points_per_centroid=len(rows), min_points_per_centroid=1)
began = time.perf_counter()
k_means.train(rows, init_centroids=start)
k_means_seconds = time.perf_counter() - began
squares, _ = k_means.index.search(rows, 1)
index = faiss.IndexFlatIP(width)
index.add(rows)
began = time.perf_counter()
scores, ids = index.search(queries, settings["neighbours"])
top_k_seconds = time.perf_counter() - began
ids.astype(numpy.int64).tofile(folder + "/ids")
scores.astype(numpy.float32).tofile(folder + "/scores")
print(json.dumps({"k_means_seconds": k_means_seconds, "top_k_seconds": top_k_seconds, "inertia": float(squares.astype(numpy.float64).sum())}))
