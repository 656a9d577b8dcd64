"""The linear programme that prices the sequences of a batch, solved by its structure.

    min Σ_k cost_k y_k
    Σ_k z_ik = 1                    every class once               dual pi_i, the price
    z_ik + v_ik = y_k               at most once in a micro-batch  w_ik
    Σ_i time_ik z_ik + p_k = y_k    device time                    t_k
    Σ_i room_i z_ik + q_k = y_k     memory                         u_k
    Σ_k y_k -+ g = number           micro-batches                  eta

All variables but the duals are at least 0; sz, sv, sy, sp, sq and sg are their reduced
costs. A primal-dual interior-point method (Mehrotra's predictor and corrector) takes
some 15 steps. In a step w is eliminated entry by entry, then t, u and y of each k by a
3 x 3 matrix (``Hi``), so that what is factored is as large as there are classes
(``S``). This takes about 1 ms for 60 classes and 30 durations, a tenth or less of what
a general solver takes.

Prefix D means a step of a variable, h what its complementarity asks for, rb the
residual of a row.
"""

from __future__ import annotations

# Types inside compiled functions are Numba's to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
import numpy as np
from numba import njit

__all__ = ["class_prices"]


@njit(cache=True, error_model="numpy")
def class_prices(time, room, cost, number, is_minimum, rounds):
    """Prices of the classes, micro-batches of each duration, duals t and u, the least.

    ``time`` [C, K] is infinite where a class does not fit a duration; ``room`` [C],
    ``cost`` [K]. ``number`` of micro-batches: at least, or at most. It stops after so
    many ``rounds`` at the latest, or where rounding ends its progress; the caller does
    not rely on the result.
    """
    C, K = time.shape
    ok = np.isfinite(time)
    a = np.where(ok, time, 0.0)
    z = np.zeros((C, K))
    v = np.zeros((C, K))
    sz = np.zeros((C, K))
    sv = np.zeros((C, K))
    w = np.zeros((C, K))
    sign = -1.0 if is_minimum else 1.0
    y = np.ones(K) * (number / K * 1.2 + 0.1)
    p = np.ones(K) * 0.5
    q = np.ones(K) * 0.5
    g = 1.0
    scale = cost.mean()
    sy = cost.copy() * 0.5
    sp = np.ones(K) * scale * 0.1
    sq = np.ones(K) * scale * 0.1
    sg = scale * 0.1
    t = np.zeros(K) - scale * 0.1
    u = np.zeros(K) - scale * 0.1
    eta = 0.0
    pi = np.zeros(C)
    for i in range(C):
        c = 0
        for k in range(K):
            if ok[i, k]:
                c += 1
        for k in range(K):
            if ok[i, k]:
                z[i, k] = 1.0 / c
                v[i, k] = max(0.05, y[k] - z[i, k])
                sz[i, k] = scale * 0.1 / C * 5
                sv[i, k] = scale * 0.1 / C * 5
                w[i, k] = -sv[i, k]
    count = 2 * ok.sum() + 3 * K + 1
    S = np.zeros((C + 1, C + 1))
    rhs = np.zeros(C + 1)
    sol = np.zeros(C + 1)
    G = np.zeros((K, C + 1, 3))
    Hi = np.zeros((K, 3, 3))
    r3 = np.zeros((K, 3))
    dz_ = np.zeros((C, K))
    dv_ = np.zeros((C, K))
    R = np.zeros((C, K))
    Dz = np.zeros((C, K))
    Dv = np.zeros((C, K))
    Dsz = np.zeros((C, K))
    Dsv = np.zeros((C, K))
    Dw = np.zeros((C, K))
    Dy = np.zeros(K)
    Dp = np.zeros(K)
    Dq = np.zeros(K)
    Dsy = np.zeros(K)
    Dsp = np.zeros(K)
    Dsq = np.zeros(K)
    Dt = np.zeros(K)
    Du = np.zeros(K)
    Dg = 0.0
    Dsg = 0.0
    De = 0.0
    Dpi = np.zeros(C)
    hz = np.zeros((C, K))
    hv = np.zeros((C, K))
    hy = np.zeros(K)
    hp = np.zeros(K)
    hq = np.zeros(K)
    hg = 0.0
    rb1 = np.zeros(C)
    rb2 = np.zeros((C, K))
    rb3 = np.zeros(K)
    rb4 = np.zeros(K)
    for _ in range(rounds):
        # Residuals, and the gap that is left.
        gap = g * sg

        rb5 = number

        for k in range(K):
            rb5 -= y[k]
            gap += y[k] * sy[k] + p[k] * sp[k] + q[k] * sq[k]
        rb5 -= sign * g
        worst = abs(rb5)
        rb1[:] = 1.0
        for k in range(K):
            r_t = y[k] - p[k]
            r_m = y[k] - q[k]
            for i in range(C):
                if ok[i, k]:
                    gap += z[i, k] * sz[i, k] + v[i, k] * sv[i, k]
                    rb1[i] -= z[i, k]
                    rb2[i, k] = y[k] - z[i, k] - v[i, k]
                    r_t -= a[i, k] * z[i, k]
                    r_m -= room[i] * z[i, k]
            rb3[k] = r_t
            rb4[k] = r_m
            worst = max(worst, abs(r_t), abs(r_m))
        for i in range(C):
            worst = max(worst, abs(rb1[i]))
        mu = gap / count
        obj = 0.0
        for k in range(K):
            obj += cost[k] * y[k]
        if gap < 1e-6 * obj and (worst < 1e-6 or gap < 1e-9 * obj):
            break
        # Eliminate, and factor what is left.
        S[:] = 0
        for k in range(K):
            h00 = p[k] / sp[k]
            h11 = q[k] / sq[k]
            h01 = 0.0
            h02 = -1.0
            h12 = -1.0
            h22 = sy[k] / y[k]
            for i in range(C):
                if ok[i, k]:
                    dz = z[i, k] / sz[i, k]
                    dv = v[i, k] / sv[i, k]
                    e = dz + dv
                    th = dz * dv / e
                    ph = dz / e
                    dz_[i, k] = dz
                    dv_[i, k] = dv
                    S[i, i] += th
                    G[k, i, 0] = a[i, k] * th
                    G[k, i, 1] = room[i] * th
                    G[k, i, 2] = ph
                    h00 += a[i, k] * a[i, k] * th
                    h01 += a[i, k] * room[i] * th
                    h11 += room[i] * room[i] * th
                    h02 += a[i, k] * ph
                    h12 += room[i] * ph
                    h22 += 1 / e
            G[k, C, 2] = 1.0
            h22 = -h22
            c00 = h11 * h22 - h12 * h12
            c01 = h02 * h12 - h01 * h22
            c02 = h01 * h12 - h02 * h11
            det = h00 * c00 + h01 * c01 + h02 * c02
            Hi[k, 0, 0] = c00 / det
            Hi[k, 0, 1] = c01 / det
            Hi[k, 0, 2] = c02 / det
            Hi[k, 1, 0] = c01 / det
            Hi[k, 1, 1] = (h00 * h22 - h02 * h02) / det
            Hi[k, 1, 2] = (h01 * h02 - h00 * h12) / det
            Hi[k, 2, 0] = c02 / det
            Hi[k, 2, 1] = Hi[k, 1, 2]
            Hi[k, 2, 2] = (h00 * h11 - h01 * h01) / det
            for i in range(C + 1):
                if i < C and not ok[i, k]:
                    continue
                x0 = G[k, i, 0] * Hi[k, 0, 0] + G[k, i, 1] * Hi[k, 1, 0] + G[k, i, 2] * Hi[k, 2, 0]
                x1 = G[k, i, 0] * Hi[k, 0, 1] + G[k, i, 1] * Hi[k, 1, 1] + G[k, i, 2] * Hi[k, 2, 1]
                x2 = G[k, i, 0] * Hi[k, 0, 2] + G[k, i, 1] * Hi[k, 1, 2] + G[k, i, 2] * Hi[k, 2, 2]
                for j in range(i + 1):
                    S[i, j] -= x0 * G[k, j, 0] + x1 * G[k, j, 1] + x2 * G[k, j, 2]
        S[C, C] += g / sg
        for i in range(C + 1):
            for j in range(i + 1):
                x = S[i, j]
                for m in range(j):
                    x -= S[i, m] * S[j, m]
                if i == j:
                    S[i, i] = np.sqrt(max(x, 1e-14))
                else:
                    S[i, j] = x / S[j, j]
        target = 0.0
        for step in range(2):
            # Predictor, then corrector: right-hand sides, solution, steps back.
            for i in range(C):
                rhs[i] = rb1[i]
            rg = -(sign * eta) - sg
            x = target - (Dg * Dsg if step else 0.0)
            hg = -rg + x / g - sg
            rhs[C] = rb5 - sign * g / sg * hg
            for k in range(K):
                cross = Dy[k] * Dsy[k] if step else 0.0
                sw = 0.0
                for i in range(C):
                    if ok[i, k]:
                        sw += w[i, k]
                ry = cost[k] + sw + t[k] + u[k] - eta - sy[k]
                hy[k] = -ry + (target - cross) / y[k] - sy[k]
                cross = Dp[k] * Dsp[k] if step else 0.0
                hp[k] = t[k] + sp[k] + (target - cross) / p[k] - sp[k]
                cross = Dq[k] * Dsq[k] if step else 0.0
                hq[k] = u[k] + sq[k] + (target - cross) / q[k] - sq[k]
                b0 = rb3[k] - p[k] / sp[k] * hp[k]
                b1 = rb4[k] - q[k] / sq[k] * hq[k]
                b2 = -hy[k]
                for i in range(C):
                    if ok[i, k]:
                        cz = Dz[i, k] * Dsz[i, k] if step else 0.0
                        cv = Dv[i, k] * Dsv[i, k] if step else 0.0
                        rz = -(pi[i] + w[i, k] + a[i, k] * t[k] + room[i] * u[k]) - sz[i, k]
                        hz[i, k] = -rz + (target - cz) / z[i, k] - sz[i, k]
                        hv[i, k] = w[i, k] + sv[i, k] + (target - cv) / v[i, k] - sv[i, k]
                        dz = dz_[i, k]
                        dv = dv_[i, k]
                        e = dz + dv
                        R[i, k] = rb2[i, k] - dz * hz[i, k] - dv * hv[i, k]
                        x = dz / e * R[i, k] + dz * hz[i, k]
                        rhs[i] -= x
                        b0 -= a[i, k] * x
                        b1 -= room[i] * x
                        b2 += R[i, k] / e
                r3[k, 0] = b0
                r3[k, 1] = b1
                r3[k, 2] = b2
                x0 = Hi[k, 0, 0] * b0 + Hi[k, 0, 1] * b1 + Hi[k, 0, 2] * b2
                x1 = Hi[k, 1, 0] * b0 + Hi[k, 1, 1] * b1 + Hi[k, 1, 2] * b2
                x2 = Hi[k, 2, 0] * b0 + Hi[k, 2, 1] * b1 + Hi[k, 2, 2] * b2
                for i in range(C + 1):
                    if i < C and not ok[i, k]:
                        continue
                    rhs[i] -= G[k, i, 0] * x0 + G[k, i, 1] * x1 + G[k, i, 2] * x2
            for i in range(C + 1):
                x = rhs[i]
                for j in range(i):
                    x -= S[i, j] * sol[j]
                sol[i] = x / S[i, i]
            for i in range(C, -1, -1):
                x = sol[i]
                for j in range(i + 1, C + 1):
                    x -= S[j, i] * sol[j]
                sol[i] = x / S[i, i]
            for i in range(C):
                Dpi[i] = sol[i]
            De = sol[C]
            Dg = g / sg * (sign * De + hg)
            for k in range(K):
                b0 = r3[k, 0]
                b1 = r3[k, 1]
                b2 = r3[k, 2]
                for i in range(C + 1):
                    if i < C and not ok[i, k]:
                        continue
                    b0 -= G[k, i, 0] * sol[i]
                    b1 -= G[k, i, 1] * sol[i]
                    b2 -= G[k, i, 2] * sol[i]
                Dt[k] = Hi[k, 0, 0] * b0 + Hi[k, 0, 1] * b1 + Hi[k, 0, 2] * b2
                Du[k] = Hi[k, 1, 0] * b0 + Hi[k, 1, 1] * b1 + Hi[k, 1, 2] * b2
                Dy[k] = Hi[k, 2, 0] * b0 + Hi[k, 2, 1] * b1 + Hi[k, 2, 2] * b2
                Dp[k] = p[k] / sp[k] * (Dt[k] + hp[k])
                Dq[k] = q[k] / sq[k] * (Du[k] + hq[k])
                Dsp[k] = -(t[k] + sp[k]) - Dt[k]
                Dsq[k] = -(u[k] + sq[k]) - Du[k]
                sw = 0.0
                dw = 0.0
                for i in range(C):
                    if ok[i, k]:
                        X = Dpi[i] + a[i, k] * Dt[k] + room[i] * Du[k]
                        dz = dz_[i, k]
                        e = dz + dv_[i, k]
                        sw += w[i, k]
                        Dw[i, k] = (R[i, k] - dz * X + Dy[k]) / e
                        dw += Dw[i, k]
                        Dz[i, k] = dz * (X + Dw[i, k] + hz[i, k])
                        Dv[i, k] = dv_[i, k] * (Dw[i, k] + hv[i, k])
                        Dsz[i, k] = (
                            -(pi[i] + w[i, k] + a[i, k] * t[k] + room[i] * u[k])
                            - sz[i, k]
                            - X
                            - Dw[i, k]
                        )
                        Dsv[i, k] = -w[i, k] - sv[i, k] - Dw[i, k]
                Dsy[k] = cost[k] + sw + t[k] + u[k] - eta - sy[k] + dw + Dt[k] + Du[k] - De
            Dsg = -(sign * eta) - sg - sign * De
            # How far, primal and dual.
            ap = 1.0
            ad = 1.0
            if Dg < 0:
                ap = min(ap, -g / Dg)
            if Dsg < 0:
                ad = min(ad, -sg / Dsg)
            for k in range(K):
                if Dy[k] < 0:
                    ap = min(ap, -y[k] / Dy[k])
                if Dp[k] < 0:
                    ap = min(ap, -p[k] / Dp[k])
                if Dq[k] < 0:
                    ap = min(ap, -q[k] / Dq[k])
                if Dsy[k] < 0:
                    ad = min(ad, -sy[k] / Dsy[k])
                if Dsp[k] < 0:
                    ad = min(ad, -sp[k] / Dsp[k])
                if Dsq[k] < 0:
                    ad = min(ad, -sq[k] / Dsq[k])
                for i in range(C):
                    if ok[i, k]:
                        if Dz[i, k] < 0:
                            ap = min(ap, -z[i, k] / Dz[i, k])
                        if Dv[i, k] < 0:
                            ap = min(ap, -v[i, k] / Dv[i, k])
                        if Dsz[i, k] < 0:
                            ad = min(ad, -sz[i, k] / Dsz[i, k])
                        if Dsv[i, k] < 0:
                            ad = min(ad, -sv[i, k] / Dsv[i, k])
            if step == 0:
                after = (g + ap * Dg) * (sg + ad * Dsg)
                for k in range(K):
                    after += (
                        (y[k] + ap * Dy[k]) * (sy[k] + ad * Dsy[k])
                        + (p[k] + ap * Dp[k]) * (sp[k] + ad * Dsp[k])
                        + (q[k] + ap * Dq[k]) * (sq[k] + ad * Dsq[k])
                    )
                    for i in range(C):
                        if ok[i, k]:
                            after += (z[i, k] + ap * Dz[i, k]) * (sz[i, k] + ad * Dsz[i, k]) + (
                                v[i, k] + ap * Dv[i, k]
                            ) * (sv[i, k] + ad * Dsv[i, k])
                target = mu * (after / gap) ** 3
        if not np.isfinite(np.sum(Dpi)) or not np.isfinite(np.sum(Dy)):
            break
        ap = min(1.0, 0.99 * ap)
        ad = min(1.0, 0.99 * ad)
        g += ap * Dg
        sg += ad * Dsg
        eta += ad * De
        for k in range(K):
            y[k] += ap * Dy[k]
            p[k] += ap * Dp[k]
            q[k] += ap * Dq[k]
            sy[k] += ad * Dsy[k]
            sp[k] += ad * Dsp[k]
            sq[k] += ad * Dsq[k]
            t[k] += ad * Dt[k]
            u[k] += ad * Du[k]
            for i in range(C):
                if ok[i, k]:
                    z[i, k] += ap * Dz[i, k]
                    v[i, k] += ap * Dv[i, k]
                    sz[i, k] += ad * Dsz[i, k]
                    sv[i, k] += ad * Dsv[i, k]
                    w[i, k] += ad * Dw[i, k]
        for i in range(C):
            pi[i] += ad * Dpi[i]
    obj = 0.0
    for k in range(K):
        obj += cost[k] * y[k]
    return pi, y, t, u, obj
