"""The work of single blocks: filed in the block store; done here, on threads, on a Dask cluster or as Prefect tasks.

A stage says what each block's work is and under which key its result is filed; a runner does it. A result in the store
is never made again. Only prefect_tasks imports Prefect.
"""
